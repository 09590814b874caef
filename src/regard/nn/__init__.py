"""Layers: multi-head attention, blocks and stacks, embeddings, and baselines to compare attention with."""

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
from .graphs.attention import GraphAttention
from .parts.learned import (
    LearnedAdditive,
    LearnedBias,
    LearnedBilinear,
    LearnedCosine,
    LearnedLinformer,
    LearnedShaw,
    LearnedT5Bias,
    LearnedTransformerXL,
)
from .parts.rotary import ScaledRotary
from .pooling import AttentionPooling, First, Last, Mean
from .sparse.bigbird import BigBirdMask, BigBirdScore
from .sparse.hierarchical import Hierarchical
from .sparse.longformer import LocalGlobal

# names of earlier versions
Memory = EncoderOutput
Text = TextEmbeddingConfig
Learned = LearnedPositions
Sinusoidal = SinusoidalPositions
LearnedPlaces2d = LearnedPositions2d
SinePlaces2d = SinusoidalPositions2d

__all__ = [
    "Attend",
    "AttentionPooling",
    "BigBirdMask",
    "BigBirdScore",
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
    "Learned",
    "LearnedAdditive",
    "LearnedBias",
    "LearnedBilinear",
    "LearnedCosine",
    "LearnedLinformer",
    "LearnedPlaces2d",
    "LearnedPositions",
    "LearnedPositions2d",
    "LearnedShaw",
    "LearnedT5Bias",
    "LearnedTransformerXL",
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
    "ScaledRotary",
    "SinePlaces2d",
    "Sinusoidal",
    "SinusoidalPositions",
    "SinusoidalPositions2d",
    "SoundConvolutions",
    "SoundFrames",
    "Stack",
    "StackConfig",
    "Text",
    "TextEmbedding",
    "TextEmbeddingConfig",
    "WordVectors",
    "log_mel",
    "mfcc",
    "read_sound",
    "read_vectors",
    "sinusoids",
]
