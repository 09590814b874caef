"""Layers: attention with several heads, blocks and stacks of it, embeddings, and the things to compare with."""

from .attention import Attend, Memory, MultiHeadAttention
from .block import Block, FeedForward, Stack, StackConfig
from .cache import Cache
from .convolution import Convolution, ConvolutionConfig
from .embeddings import Learned, Sinusoidal, Text, TextEmbedding, sinusoids
from .fully_connected import FullyConnected, FullyConnectedConfig
from .graph import GraphAttention
from .hierarchical import Hierarchical, LocalGlobal
from .images import FeatureMap, LearnedPlaces2d, Patches, ResNet, SinePlaces2d
from .pooling import AttentionPooling, First, Last, Mean
from .recurrent import Recurrent, RecurrentConfig
from .sound import Mel, SoundConvolutions, SoundFrames, log_mel, mfcc, read_sound
from .vectors import OneHot, WordVectors, read_vectors

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
