"""Layers: attention with several heads, blocks and stacks of it, embeddings, and the things to compare with."""

from .attention import Attend, Memory, MultiHeadAttention
from .baselines.convolution import Convolution, ConvolutionConfig
from .baselines.fully_connected import FullyConnected, FullyConnectedConfig
from .baselines.recurrent import Recurrent, RecurrentConfig
from .block import Block, FeedForward, Stack, StackConfig
from .cache import Cache
from .embeddings.audio import Mel, SoundConvolutions, SoundFrames, log_mel, mfcc, read_sound
from .embeddings.images import FeatureMap, LearnedPlaces2d, Patches, ResNet, SinePlaces2d
from .embeddings.text import Learned, Sinusoidal, Text, TextEmbedding, sinusoids
from .embeddings.word_vectors import OneHot, WordVectors, read_vectors
from .graph import GraphAttention
from .hierarchical import Hierarchical, LocalGlobal
from .pooling import AttentionPooling, First, Last, Mean

__all__ = [
    "Attend",
    "AttentionPooling",
    "Block",
    "Cache",
    "Convolution",
    "ConvolutionConfig",
    "FeatureMap",
    "FeedForward",
    "First",
    "FullyConnected",
    "FullyConnectedConfig",
    "GraphAttention",
    "Hierarchical",
    "Last",
    "Learned",
    "LearnedPlaces2d",
    "LocalGlobal",
    "Mean",
    "Mel",
    "Memory",
    "MultiHeadAttention",
    "OneHot",
    "Patches",
    "Recurrent",
    "RecurrentConfig",
    "ResNet",
    "SinePlaces2d",
    "Sinusoidal",
    "SoundConvolutions",
    "SoundFrames",
    "Stack",
    "StackConfig",
    "Text",
    "TextEmbedding",
    "WordVectors",
    "log_mel",
    "mfcc",
    "read_sound",
    "read_vectors",
    "sinusoids",
]
