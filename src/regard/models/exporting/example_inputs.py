"""Example arguments of a model, made from its configuration: small batches of tokens, images, sound or graphs."""

from __future__ import annotations

import torch
from torch import Tensor

from ...attention.parts.masks import NearBlocks, RandomBlocks
from ...errors import Unsupported
from ...nn.block import StackConfig
from ...nn.embeddings.patch_embedding import ImageEmbeddingConfig
from ...nn.embeddings.patch_grid import PatchGridConfig
from ...nn.embeddings.residual_embedding import ResidualEmbeddingConfig
from ...nn.embeddings.sound_embedding import SoundEmbeddingConfig
from ...nn.embeddings.text import TextEmbeddingConfig
from ...nn.embeddings.waveform import MoonshineEmbeddingConfig, Wav2VecEmbeddingConfig
from ...nn.graphs.layers import GraphLayersConfig
from ...nn.sparse.bigbird import BigBirdMask
from ..baselines.tfidf import TfidfConfig
from ..config import EncoderDecoderConfig, SequenceConfig
from ..detection import DetectionConfig
from ..dual_encoder import DualEncoderConfig
from ..ensemble import EnsembleModel
from ..graph_attention import GATConfig
from ..graph_encoder import GraphEncoderConfig
from ..interfaces import EmbeddingConfig
from ..model import Model
from ..table import TableConfig

BATCH, TOKENS, TARGETS, FRAMES, NODES, SAMPLES = 3, 13, 7, 40, 11, 4000


def make_example_inputs(model: Model) -> dict[str, Tensor]:
    """Arguments that a model can be called with; `Unsupported` for a model whose inputs are not known here."""
    config, generator = model.config, torch.Generator().manual_seed(0)
    if isinstance(config, SequenceConfig):
        mask = config.stack.parts.mask if isinstance(config.stack, StackConfig) else None
        blocks = isinstance(mask, BigBirdMask | NearBlocks | RandomBlocks)  # of which several are needed
        inputs = embedding_inputs(config.embed, generator, 12 * mask.block if blocks else TOKENS)
        if config.stack.causal:  # what follows a token does not change its output
            inputs.pop("lengths", None)
        return inputs
    if isinstance(config, EncoderDecoderConfig):
        target = config.decoder_embed or config.embed
        vocabulary = target.vocabulary if isinstance(target, TextEmbeddingConfig) else 2
        tokens = torch.randint(vocabulary, (BATCH, TARGETS), generator=generator)
        return {**embedding_inputs(config.embed, generator), "targets": tokens}
    if isinstance(config, DualEncoderConfig):
        towers = [tower for tower in (config.image, config.text) if tower is not None]
        return {name: x for tower in towers for name, x in embedding_inputs(tower.embed, generator).items()}
    if isinstance(model, EnsembleModel):
        extra = model.beside if model.config.extra_inputs else None
        members = [part for part in (model.members[0], extra) if isinstance(part, Model)]
        return {name: x for member in members for name, x in make_example_inputs(member).items()}
    if isinstance(config, TfidfConfig):
        ngrams = torch.randint(1, 1 + config.words + config.characters, (BATCH, TOKENS), generator=generator)
        return {"ngrams": ngrams, "ngram_counts": torch.randint(1, 3, (BATCH, TOKENS), generator=generator)}
    if isinstance(config, DetectionConfig):
        return {"images": torch.randn(BATCH, 3, 64, 96, generator=generator)}
    if isinstance(config, GATConfig):
        return graph_inputs(config.features, config.edge_features, generator)
    if isinstance(config, GraphEncoderConfig):
        edge_features = config.stack.edge_features if isinstance(config.stack, GraphLayersConfig) else 0
        inputs = graph_inputs(config.features, edge_features, generator)
        return inputs if config.head.per_token else {**inputs, "sizes": torch.tensor([NODES - 4, 4])}
    if isinstance(config, TableConfig):
        sizes = config.embed.sizes
        columns = [
            torch.randint(size, (BATCH,), generator=generator).float()
            if size
            else torch.randn(BATCH, generator=generator)
            for size in sizes
        ]
        return {"columns": torch.stack(columns, dim=1)}
    raise Unsupported(
        f"Example inputs of {type(config).__name__} are not known. Give inputs={{name: tensor}}: arguments that the "
        "model can be called with."
    )


def graph_inputs(features: int, edge_features: int, generator: torch.Generator) -> dict[str, Tensor]:
    """A ring of nodes, each with edges from itself and from the one before it."""
    there = torch.arange(NODES)
    edges = torch.stack([torch.cat([there, there]), torch.cat([there, (there + 1) % NODES])])
    inputs = {"nodes": torch.randn(NODES, features, generator=generator), "edges": edges}
    if edge_features:
        inputs["edge_features"] = torch.randn(2 * NODES, edge_features, generator=generator)
    return inputs


def embedding_inputs(embed: EmbeddingConfig, generator: torch.Generator, tokens: int = TOKENS) -> dict[str, Tensor]:
    """The arguments that an embedding reads."""
    if isinstance(embed, TextEmbeddingConfig):
        tokens = min(tokens, embed.max_positions or tokens)
        lengths = torch.tensor([tokens, tokens // 2 + 1, max(1, tokens - 2)])
        return {"tokens": torch.randint(embed.vocabulary, (BATCH, tokens), generator=generator), "lengths": lengths}
    if isinstance(embed, ImageEmbeddingConfig | PatchGridConfig):
        height, width = embed.size if isinstance(embed.size, tuple) else (embed.size, embed.size)
        return {"images": torch.randn(BATCH, embed.channels, height, width, generator=generator)}
    if isinstance(embed, ResidualEmbeddingConfig):
        return {"images": torch.randn(BATCH, embed.channels, 32, 32, generator=generator)}
    if isinstance(embed, SoundEmbeddingConfig):
        most = embed.max_positions
        frames = FRAMES if most is None else 2 * most
        sound = torch.randn(BATCH, frames, embed.bins, generator=generator)
        return {"sound": sound} if most is not None else {"sound": sound, "lengths": torch.tensor([frames, 26, 33])}
    if isinstance(embed, Wav2VecEmbeddingConfig | MoonshineEmbeddingConfig):
        lengths = torch.tensor([SAMPLES, SAMPLES // 2, SAMPLES - 777])
        return {"sound": torch.randn(BATCH, SAMPLES, generator=generator), "lengths": lengths}
    raise Unsupported(f"Example inputs of {type(embed).__name__} are not known. Give inputs={{name: tensor}}.")
