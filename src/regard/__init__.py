"""Regard: every attention mechanism as one function call, with models, training and tools to inspect the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import models, nn
from .attention.attend import attend
from .attention.convert import causal_from_start, from_additive, from_attn_mask, from_hugging_face, from_key_padding
from .attention.look import look
from .attention.parts.edges import EdgeFeatures, Edges
from .attention.parts.mask import Mask
from .attention.parts.masks import (
    Blocks,
    Causal,
    Chunked,
    Dilated,
    Documents,
    Everything,
    Global,
    Lengths,
    NearBlocks,
    Pairs,
    Prefix,
    RandomBlocks,
    Tree,
    Window,
    bigbird,
    longformer,
)
from .attention.parts.methods import Exact, Linformer, Method, Nystrom, Performer
from .attention.parts.pair_bias import PairBias
from .attention.parts.parts import Parts
from .attention.parts.places import Places
from .attention.parts.positions import (
    Alibi,
    AxialRotary,
    Bias,
    Disentangled,
    Position,
    Rotary,
    Shaw,
    T5Bias,
    TransformerXL,
)
from .attention.parts.scores import Additive, Bilinear, Cosine, Dot, Score
from .attention.parts.sink import Sink
from .attention.plan import Plan, plan
from .attention.view import View
from .errors import BadInput, Missing, RegardError, TooLarge, Unsupported
from .models.checkpoint.checkpoint import load
from .nn.hooks.edit import edit
from .nn.hooks.watch import watch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from torch import Tensor
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from .distributed import Layout, Link
    from .inference.predictor import Predictor
    from .models.exporting.export import ExportedModel, Format
    from .models.model import Model

__version__ = "0.1.0"

__all__ = [
    "Additive",
    "Alibi",
    "AxialRotary",
    "BadInput",
    "Bias",
    "Bilinear",
    "Blocks",
    "Causal",
    "Chunked",
    "Cosine",
    "Dilated",
    "Disentangled",
    "Documents",
    "Dot",
    "EdgeFeatures",
    "Edges",
    "Everything",
    "Exact",
    "Global",
    "Lengths",
    "Linformer",
    "Mask",
    "Method",
    "Missing",
    "NearBlocks",
    "Nystrom",
    "PairBias",
    "Pairs",
    "Parts",
    "Performer",
    "Places",
    "Plan",
    "Position",
    "Prefix",
    "RandomBlocks",
    "RegardError",
    "Rotary",
    "Score",
    "Shaw",
    "Sink",
    "T5Bias",
    "TooLarge",
    "TransformerXL",
    "Tree",
    "Unsupported",
    "View",
    "Window",
    "attend",
    "bigbird",
    "causal_from_start",
    "edit",
    "export",
    "from_additive",
    "from_attn_mask",
    "from_hugging_face",
    "from_key_padding",
    "load",
    "longformer",
    "look",
    "models",
    "nn",
    "open",
    "plan",
    "shard",
    "watch",
]


def open(run: str | Path, settings: Mapping[str, Any] | None = None) -> Predictor:
    """A trained model with its task: `predict` takes one input or many and gives typed results.

    `run` is the folder of a run, the name of a shipped model, or a Hugging Face folder whose head has a task
    (classification, tagging, text generation). `settings` are other settings of the task, such as `{"beams": 1}`.

    >>> tagger = open("tagger")
    >>> result = tagger.predict("The cat sat on the mat .")
    >>> result.words[:3], result.tags[:3]
    (('The', 'cat', 'sat'), ('DET', 'NOUN', 'VERB'))
    """
    from .inference.predictor import open_predictor

    return open_predictor(run, settings)


def shard(
    masks: Mask | Sequence[Mask] | None,
    tokens: int | tuple[int, int],
    mesh: DeviceMesh | ProcessGroup | int | None = None,
    *,
    strategy: str = "auto",
    link: Link | str | None = None,
    tile: int | None = None,
    pairs_per_token: float = 0.0,
) -> Layout:
    """The layout of a sequence of `tokens` over the ranks of `mesh`, for `attend(..., layout=layout)`.

    `masks` are all that the model uses: the layout is chosen for them together, by the predicted time of the slowest
    rank, among `equal runs`, `equal work`, `zigzag` and `longest first` (`strategy` names one). `tokens` is a pair
    (queries, keys) for attention to another sequence. `mesh` is a `DeviceMesh` of one dimension, a process group, None
    for all processes, or a number of ranks: a layout that can be planned with but not run. `link` is what connects
    them (`nvlink`, `infiniband`, `ethernet`, `gloo`); `tile` the number of tokens that are shared out together.
    `pairs_per_token` is what a token costs outside attention, in pairs of a query and a key: 6 · dim in a transformer.

    >>> import regard as rg
    >>> layout = rg.shard(rg.Causal() & rg.Window(4095), 262_144, 16)
    >>> layout.strategy, layout.rows(3)
    ('equal runs', ((49152, 65536),))
    """
    from .distributed.shard import make_layout

    return make_layout(masks, tokens, mesh, strategy=strategy, link=link, tile=tile, pairs_per_token=pairs_per_token)


def export(
    model: Model | Predictor | str | Path,
    file: str | Path,
    format: Format | None = None,
    inputs: Mapping[str, Tensor] | None = None,
) -> ExportedModel:
    """Write a model as ONNX (`.onnx`) or as a program of `torch.export` (`.pt2`), and check its numbers.

    `model` is a model, what `regard.open` returned, or the folder of a run. The graph has plain operators only, and its
    batch size and lengths may differ from call to call. `inputs` are example arguments, made for the model by default.
    Raises `Unsupported` with the reason for a model that cannot be exported.
    """
    from .inference.predictor import export_predictor

    return export_predictor(model, file, format, inputs)
