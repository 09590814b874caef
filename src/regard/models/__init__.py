"""Models: configurations, checkpoints, tokenizers, generation."""

from .families.bert import bert
from .families.bigbird import bigbird
from .families.clip import clip
from .families.detr import detr
from .families.distilbert import distilbert
from .families.gat import gat, gatv2
from .families.gpt2 import gpt2
from .families.llama import llama
from .families.longformer import longformer
from .families.marian import marian
from .families.roberta import roberta
from .families.speech import speech, truncated_speech
from .families.t5 import t5, t5_encoder
from .families.transformer import transformer, transformer_small
from .families.transformer_xl import transformer_xl, transformer_xl_large
from .families.vit import vit
from .families.whisper import whisper

__all__ = [
    "bert",
    "bigbird",
    "clip",
    "detr",
    "distilbert",
    "gat",
    "gatv2",
    "gpt2",
    "llama",
    "longformer",
    "marian",
    "roberta",
    "speech",
    "t5",
    "t5_encoder",
    "transformer",
    "transformer_small",
    "transformer_xl",
    "transformer_xl_large",
    "truncated_speech",
    "vit",
    "whisper",
]
