"""Models: configurations, checkpoints, tokenizers, generation."""

from .families.llama import llama
from .families.marian import marian
from .families.speech import speech, truncated_speech
from .families.t5 import t5, t5_encoder
from .families.transformer import transformer, transformer_small
from .families.whisper import whisper

__all__ = [
    "llama",
    "marian",
    "speech",
    "t5",
    "t5_encoder",
    "transformer",
    "transformer_small",
    "truncated_speech",
    "whisper",
]
