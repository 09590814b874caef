"""Models: configurations, checkpoints, tokenizers, generation."""

from .families.albert import albert
from .families.bart import bart, mbart, pegasus
from .families.bert import bert
from .families.bigbird import bigbird
from .families.clip import clip
from .families.deberta_v3 import deberta_v3
from .families.detr import detr
from .families.dinov2 import dinov2
from .families.distilbert import distilbert
from .families.electra import electra
from .families.gat import gat, gatv2
from .families.gemma import gemma2, gemma3
from .families.gpt2 import gpt2
from .families.gpt_neox import gpt_neox
from .families.gpt_oss import gpt_oss
from .families.llama import llama
from .families.llama_presets import mistral, olmo2, phi3, qwen2, qwen3, smollm2, smollm3
from .families.longformer import longformer
from .families.marian import marian
from .families.modernbert import modernbert
from .families.moonshine import moonshine
from .families.opt import opt
from .families.roberta import roberta
from .families.siglip import siglip, siglip2
from .families.speech import speech, truncated_speech
from .families.swin import swin
from .families.t5 import t5, t5_encoder
from .families.transformer import transformer, transformer_small
from .families.transformer_xl import transformer_xl, transformer_xl_large
from .families.vit import vit
from .families.wav2vec2 import wav2vec2
from .families.whisper import whisper

__all__ = [
    "albert",
    "bart",
    "bert",
    "bigbird",
    "clip",
    "deberta_v3",
    "detr",
    "dinov2",
    "distilbert",
    "electra",
    "gat",
    "gatv2",
    "gemma2",
    "gemma3",
    "gpt2",
    "gpt_neox",
    "gpt_oss",
    "llama",
    "longformer",
    "marian",
    "mbart",
    "mistral",
    "modernbert",
    "moonshine",
    "olmo2",
    "opt",
    "pegasus",
    "phi3",
    "qwen2",
    "qwen3",
    "roberta",
    "siglip",
    "siglip2",
    "smollm2",
    "smollm3",
    "speech",
    "swin",
    "t5",
    "t5_encoder",
    "transformer",
    "transformer_small",
    "transformer_xl",
    "transformer_xl_large",
    "truncated_speech",
    "vit",
    "wav2vec2",
    "whisper",
]
