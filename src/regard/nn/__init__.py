"""Layers: multi-head attention, blocks and stacks, embeddings, and baselines to compare attention with."""

from .attention import Attend, EncoderOutput, MultiHeadAttention
from .baselines.convolution import Convolution, ConvolutionConfig
from .baselines.fully_connected import FullyConnected, FullyConnectedConfig
from .baselines.recurrent import Recurrent, RecurrentConfig
from .block import Block, FeedForward, Stack, StackConfig
from .cache import Cache
from .caches.config import CacheConfig
from .embeddings.audio import Mel, SoundConvolutions, SoundFrames, log_mel, mfcc, read_sound
from .embeddings.images import FeatureMap, LearnedPositions2d, Patches, ResNet, SinusoidalPositions2d
from .embeddings.patch_embedding import fit_patches
from .embeddings.text import LearnedPositions, SinusoidalPositions, TextEmbedding, TextEmbeddingConfig, sinusoids
from .embeddings.waveform import normalize_samples
from .embeddings.word_vectors import OneHot, WordVectors, read_vectors
from .experts import ExpertsConfig
from .graphs.attention import GraphAttention
from .multihead.differential import DifferentialConfig
from .multihead.gate import GateConfig
from .multihead.latent import LatentConfig, MultiHeadLatentAttention
from .parts.disentangled import LearnedDisentangled
from .parts.learned import (
    LearnedAdditive,
    LearnedBias,
    LearnedBilinear,
    LearnedCosine,
    LearnedLinformer,
    LearnedShaw,
    LearnedSink,
    LearnedT5Bias,
    LearnedTransformerXL,
)
from .parts.rotary import DynamicRotary, LongRotary, ScaledRotary, YarnRotary
from .pooling import AttentionPooling, First, Last, Mean, Sum
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
    "CacheConfig",
    "Convolution",
    "ConvolutionConfig",
    "DifferentialConfig",
    "DynamicRotary",
    "EncoderOutput",
    "ExpertsConfig",
    "FeatureMap",
    "FeedForward",
    "First",
    "FullyConnected",
    "FullyConnectedConfig",
    "GateConfig",
    "GraphAttention",
    "Hierarchical",
    "Last",
    "LatentConfig",
    "Learned",
    "LearnedAdditive",
    "LearnedBias",
    "LearnedBilinear",
    "LearnedCosine",
    "LearnedDisentangled",
    "LearnedLinformer",
    "LearnedPlaces2d",
    "LearnedPositions",
    "LearnedPositions2d",
    "LearnedShaw",
    "LearnedSink",
    "LearnedT5Bias",
    "LearnedTransformerXL",
    "LocalGlobal",
    "LongRotary",
    "Mean",
    "Mel",
    "Memory",
    "MultiHeadAttention",
    "MultiHeadLatentAttention",
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
    "Sum",
    "Text",
    "TextEmbedding",
    "TextEmbeddingConfig",
    "WordVectors",
    "YarnRotary",
    "fit_patches",
    "log_mel",
    "mfcc",
    "normalize_samples",
    "read_sound",
    "read_vectors",
    "sinusoids",
]
