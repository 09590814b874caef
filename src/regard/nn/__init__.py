"""Layers: attention with several heads, blocks and stacks of it, embeddings, and the things to compare with."""

from .attention import Attend, EncoderOutput, MultiHeadAttention
from .baselines.convolution import Convolution, ConvolutionConfig
from .baselines.fully_connected import FullyConnected, FullyConnectedConfig
from .baselines.recurrent import Recurrent, RecurrentConfig
from .block import Block, FeedForward, Stack, StackConfig
from .cache import Cache
from .embeddings.audio import Mel, SoundConvolutions, SoundFrames, log_mel, mfcc, read_sound
from .embeddings.images import FeatureMap, LearnedPositions2d, Patches, ResNet, SinusoidalPositions2d
from .embeddings.text import LearnedPositions, SinusoidalPositions, TextEmbedding, TextEmbeddingConfig, sinusoids
from .embeddings.word_vectors import OneHot, WordVectors, read_vectors
from .graph import GraphAttention
from .hierarchical import Hierarchical, LocalGlobal
from .pooling import AttentionPooling, First, Last, Mean

Memory = EncoderOutput

__all__ = [
    "Attend",
    "AttentionPooling",
    "Block",
    "Cache",
    "Convolution",
    "ConvolutionConfig",
    "EncoderOutput",
    "FeatureMap",
    "FeedForward",
    "First",
    "FullyConnected",
    "FullyConnectedConfig",
    "GraphAttention",
    "Hierarchical",
    "Last",
    "LearnedPositions",
    "LearnedPositions2d",
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
    "SinusoidalPositions",
    "SinusoidalPositions2d",
    "SoundConvolutions",
    "SoundFrames",
    "Stack",
    "StackConfig",
    "TextEmbedding",
    "TextEmbeddingConfig",
    "WordVectors",
    "log_mel",
    "mfcc",
    "read_sound",
    "read_vectors",
    "sinusoids",
]
