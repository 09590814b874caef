"""The page Mechanisms: a call built from score, position, mask and method; its mask, its plan, and its Python code.

Parts come as text and are parsed (`regard.nn.parts.parse`); no code of a request is ever run.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import NotRequired, TypedDict, TypeVar

import torch
from torch import Tensor

import regard as rg

from ...attention.parts.mask import Mask, PairGrid, Tiling
from ...attention.parts.masks import Everything
from ...attention.parts.masks.tile_states import add_batch_heads
from ...attention.parts.methods import Method
from ...attention.parts.part import Part, PartSpec
from ...attention.parts.positions import Position, TransformerXL
from ...attention.parts.scores import Score
from ...attention.parts.text import parse_part
from ...attention.plan import AttendOptions
from ...errors import BadInput, RegardError
from ...nn.parts.config import build_part
from ...nn.parts.learned import LearnedTransformerXL
from ...nn.parts.parse import POSITIONS, parse_mask, parse_method, parse_score
from ...nn.parts.rotary import RotarySpec
from ..builtin.soft_dictionary import dictionary
from ..inspect.attention_fields import PartFields
from ..lab import Lab
from ..protocol import Json, Request
from ..server.jobs import Job
from .request import check_index

MAX_TEXT = 400
"""Characters of a part's text."""
MAX_NUMBER = 1 << 20
"""The largest number in a part's text."""
SIZES = {"heads": (8, 64), "kv_heads": (8, 64), "queries": (64, 131_072), "keys": (64, 131_072), "head_dim": (32, 256)}
"""Default and largest sizes of a call."""
MAX_ELEMENTS = 1 << 26
"""Elements of q, k or v."""
MAX_PAIRS, TILES = 512, 128
"""Tokens up to which every pair of a mask is drawn, and rows and columns of tiles beyond."""
REACH = 32
PICTURE, PICTURE_HEAD = 32, 2
"""Tokens of a small picture, and the head whose bias it shows."""
PartType = TypeVar("PartType", bound=Part)
Sizes = dict[str, int]
"""Heads, queries, keys and dims of a call by name."""


@dataclass(frozen=True)
class CallParts:
    """The parts of a call; None where the request has none."""

    mask: Mask | None
    score: Score | None
    position: Position | None
    method: Method | None

    @property
    def arguments(self) -> AttendOptions:
        return {"score": self.score, "position": self.position, "mask": self.mask, "method": self.method}

    def by_name(self) -> dict[str, Part]:
        """The parts that there are."""
        parts = (("mask", self.mask), ("score", self.score), ("position", self.position), ("method", self.method))
        return {name: part for name, part in parts if part is not None}


class PlanFields(TypedDict):
    backend: str
    reasons: dict[str, str]
    operations: int
    bytes: int
    peak: int
    tiles: float | None


class BiasCurve(TypedDict):
    """The position bias of each head by distance, `[distances]` and `[heads, distances]`."""

    distance: Tensor
    added: Tensor


class MaskFields(TypedDict):
    """A mask pair by pair, or by tiles of `tile` queries and keys; `allowed` is the share of allowed pairs."""

    mask: Tensor | None
    tiles: Tensor | None
    tile: NotRequired[list[int]]
    allowed: float | None


class CallFields(MaskFields):
    """See `plan`; `refused` says why the call cannot be made."""

    sizes: Sizes
    parts: dict[str, PartFields]
    formula: dict[str, str]
    python: str
    layer: str | None
    plan: PlanFields
    text: str
    refused: str | None
    curve: BiasCurve | None
    bias: Tensor | None


class PartPictures(TypedDict):
    mask: list[Tensor]
    position: list[Tensor | None]


class PartChoices(TypedDict):
    choices: dict[str, list[str]]
    sizes: dict[str, list[int]]


def plan(lab: Lab, request: Request, job: Job) -> CallFields:
    """The call of these parts: formulas, mask, plan, and Python code to copy."""
    sizes = read_sizes(request.get("sizes") or {})
    parts = read_parts(request, sizes)
    q, k = expanded_zeros(sizes, "heads", "queries"), expanded_zeros(sizes, "kv_heads", "keys")
    plan = rg.plan(q, k, k, **parts.arguments)
    return {
        "sizes": sizes,
        "parts": {name: {"line": str(part), "formula": part.formula} for name, part in parts.by_name().items()},
        "formula": {
            "score": (parts.score or rg.Dot()).formula,
            "position": "" if parts.position is None else parts.position.formula,
            "mask": "" if parts.mask is None else parts.mask.formula,
            "method": (parts.method or rg.Exact()).formula,
        },
        "python": python_code(parts, sizes),
        "layer": layer_text(request, sizes),
        "plan": {
            "backend": plan.backend,
            "reasons": plan.reasons,
            "operations": plan.operations,
            "bytes": plan.bytes,
            "peak": plan.peak,
            "tiles": plan.tiles,
        },
        "text": str(plan),
        "refused": refusal(parts, sizes),
        **describe_mask(parts.mask or Everything(), sizes),
        "curve": position_curve(parts.position, sizes),
        "bias": bias_map(parts.position, sizes, check_index(request.get("head", 0), sizes["heads"], "head")),
    }


def read_sizes(given: Json) -> Sizes:
    """Sizes of a call; `kv_heads` are as many as heads unless given."""
    if not isinstance(given, dict) or set(given) - set(SIZES):
        raise BadInput(f"sizes is {given!r:.80}; it must be an object of {', '.join(SIZES)}.")
    sizes: Sizes = {}
    for name, (usual, most) in SIZES.items():
        size = given.get(name, sizes["heads"] if name == "kv_heads" else usual)
        if type(size) is not int or not 1 <= size <= most:
            raise BadInput(f"{name} is {size!r:.40}; it must be a whole number from 1 to {most:,}.")
        sizes[name] = size
    if sizes["heads"] * max(sizes["queries"], sizes["keys"]) * sizes["head_dim"] > MAX_ELEMENTS:
        raise BadInput(f"{sizes} has more than {MAX_ELEMENTS:,} numbers in q or k. Use fewer heads, tokens or dims.")
    return sizes


def expanded_zeros(sizes: Sizes, heads: str, tokens: str) -> Tensor:
    """Zeros of that shape without its memory."""
    return torch.zeros(()).expand(1, sizes[heads], sizes[tokens], sizes["head_dim"])


def read_parts(request: Request, sizes: Sizes) -> CallParts:
    """The parts of a request; learned tensors are random, from a fixed seed."""
    texts = {name: read_text(request.get(name), name) for name in ("score", "position", "mask", "method")}
    heads, dim = sizes["heads"], sizes["head_dim"]
    positions = POSITIONS | {"TransformerXL": make_transformer_xl}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        return CallParts(
            parse_mask(texts["mask"] or None),
            draw_part(parse_score(texts["score"]), heads, dim) if texts["score"] else None,
            draw_position(parse_part(texts["position"], positions), heads, dim) if texts["position"] else None,
            draw_part(parse_method(texts["method"]), heads, dim) if texts["method"] else None,
        )


def read_text(text: Json, name: str) -> str:
    if text is None:
        return ""
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise BadInput(
            f"{name} is {text!r:.60}; it must be a part, such as Causal(), of at most {MAX_TEXT} characters."
        )
    if any(float(number) > MAX_NUMBER for number in re.findall(r"\d+", text)):
        raise BadInput(f"{name} is {text!r:.60}; numbers must be at most {MAX_NUMBER:,}.")
    return text.strip()


def make_transformer_xl(reach: int = REACH, **others: object) -> LearnedTransformerXL:
    """Transformer-XL's position as a call reads it: its sizes are the call's."""
    return LearnedTransformerXL(dim=1, layers=1, reach=reach)


def draw_position(part: Position, heads: int, dim: int) -> Position:
    """The position of a call; the tensors of a learned one are drawn."""
    if isinstance(part, LearnedTransformerXL):
        reach = REACH if part.reach is None else part.reach
        return TransformerXL(torch.randn(heads, reach + 1, dim), torch.randn(heads, dim), torch.randn(heads, dim))
    if isinstance(part, RotarySpec):
        raise BadInput(f"position is {part!r:.60}; in a call Rotary takes only base and dim.")
    return draw_part(part, heads, dim)


def draw_part(part: PartType, heads: int, dim: int) -> PartType:
    """The part of a call; the tensors of a learned one are drawn."""
    if not isinstance(part, PartSpec):
        return part
    return build_part(part, heads, dim)()


def python_code(parts: CallParts, sizes: Sizes) -> str:
    """A program with this call, to be copied and run."""
    size = "1, {}, {}, {}"
    lines = [
        "import torch, regard as rg",
        f"q = torch.randn({size.format(sizes['heads'], sizes['queries'], sizes['head_dim'])})",
        f"k = torch.randn({size.format(sizes['kv_heads'], sizes['keys'], sizes['head_dim'])})",
        "v = torch.randn_like(k)",
    ]
    arguments = []
    by_name = parts.by_name()
    for name in (name for name in ("score", "position", "mask", "method") if name in by_name):
        before, text = part_code(by_name[name])
        lines += before
        arguments.append(f"{name}={text}")
    return "\n".join([*lines, f"y = rg.attend({', '.join(['q', 'k', 'v', *arguments])})"])


def part_code(part: Part) -> tuple[list[str], str]:
    """The lines that make a part's tensors, and the part itself as Python."""
    if isinstance(part, Mask) and not part.tensors():
        return [], add_module(repr(part))
    before, arguments = [], []
    for field in dataclasses.fields(part):  # type: ignore[arg-type]
        value = getattr(part, field.name)
        if isinstance(value, Tensor):
            before.append(f"{field.name} = torch.randn({', '.join(map(str, value.shape))})")
            arguments.append(f"{field.name}={field.name}" if field.name != "weight" else "weight")
        elif field.init and value != field.default:
            arguments.append(f"{field.name}={value!r}")
    return before, f"rg.{type(part).__name__}({', '.join(arguments)})"


def add_module(text: str) -> str:
    """A part's text with the module before each name."""
    return re.sub(r"\b([A-Za-z]\w*)\(", lambda match: f"rg.{match[0]}" if match[1] in rg.__all__ else match[0], text)


def layer_text(request: Request, sizes: Sizes) -> str | None:
    """The layer with these parts; None for a position that all layers of a stack share."""
    if str(request.get("position")).strip().startswith("TransformerXL"):
        return None
    lines = [
        f"{name}={str(request[name]).strip()!r}"
        for name in ("score", "position", "mask", "method")
        if request.get(name)
    ]
    dim, heads = sizes["heads"] * sizes["head_dim"], sizes["heads"]
    own = [f"kv_heads={sizes['kv_heads']}"] if sizes["kv_heads"] != heads else []
    return f"rg.nn.MultiHeadAttention({', '.join([f'dim={dim}', f'heads={heads}', *own, *lines])})"


def refusal(parts: CallParts, sizes: Sizes) -> str | None:
    """Why the call cannot be made; None when it can. A method says so only when it is called."""
    if parts.method is None or sizes["heads"] * sizes["queries"] * sizes["keys"] > MAX_ELEMENTS:
        return None
    q, k = expanded_zeros(sizes, "heads", "queries"), expanded_zeros(sizes, "kv_heads", "keys")
    try:
        with torch.no_grad():
            rg.attend(q.clone(), k.clone(), k.clone(), **parts.arguments)
    except RegardError as error:
        return str(error)
    return None


def describe_mask(mask: Mask, sizes: Sizes) -> MaskFields:
    """The mask pair by pair where there are few, or else by tiles: 0 no pair allowed, 1 some, 2 all."""
    queries, keys = sizes["queries"], sizes["keys"]
    if queries <= MAX_PAIRS and keys <= MAX_PAIRS:
        every = add_batch_heads(mask.dense(queries, keys))[0, 0]
        return {"mask": every, "tiles": None, "allowed": float(every.float().mean())}
    rows, columns = -(-queries // TILES), -(-keys // TILES)
    tiles = add_batch_heads(mask.tiles(Tiling(PairGrid(queries, keys), rows, columns)))[0, 0]
    return {"mask": None, "tiles": tiles.to(torch.uint8), "tile": [rows, columns], "allowed": None}


def position_curve(position: Position | None, sizes: Sizes) -> BiasCurve | None:
    """The position bias of each head for distances from −32 to 32; None where it depends on the query."""
    if position is None:
        return None
    reach = 2 * REACH + 1
    bias = position.rel_bias(torch.zeros(1, sizes["heads"], reach, 1), torch.zeros(1, sizes["heads"], reach, 1))
    if bias is None:
        return None
    distance = torch.arange(-REACH, REACH + 1)
    values = bias.table[:, (distance + bias.zero).clamp(0, bias.table.shape[1] - 1)]
    return {"distance": distance, "added": values}


def bias_map(position: Position | None, sizes: Sizes, head: int) -> Tensor | None:
    """The position bias of one head for every pair, `[queries, keys]`; None where it depends on q or there are many."""
    queries, keys, heads = sizes["queries"], sizes["keys"], sizes["heads"]
    if position is None or max(queries, keys) > MAX_PAIRS:
        return None
    bias = position.rel_bias(torch.zeros(1, heads, queries, 1), torch.zeros(1, heads, keys, 1))
    if bias is None:
        return None
    distance = torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)
    return bias.table[head, (distance + bias.zero).clamp(0, bias.table.shape[1] - 1)].float()


def pictures(lab: Lab, request: Request, job: Job) -> PartPictures:
    """A small picture of every mask and position to choose from: allowed pairs, and the bias of one head.

    A position that adds no bias by distance has None.
    """
    sizes = read_sizes({"queries": PICTURE, "keys": PICTURE, "heads": 8})
    masks = [(parse_mask(line) if line else None) or Everything() for line in CHOICES["mask"]]
    positions = [read_parts({"position": line}, sizes).position for line in CHOICES["position"]]
    return {
        "mask": [add_batch_heads(mask.dense(PICTURE, PICTURE))[0, 0].to(torch.uint8) for mask in masks],
        "position": [bias_map(position, sizes, PICTURE_HEAD) for position in positions],
    }


CHOICES = {
    "score": ["Dot()", "Dot(scale=1.0)", "Cosine(scale=10.0)", "Bilinear()", "Additive(activation='tanh')",
              "Additive(activation='leaky_relu')"],
    "position": ["", "Alibi()", "Rotary()", "Bias(reach=16)", "T5Bias(buckets=32)", "Shaw(reach=8)",
                 "TransformerXL(reach=32)"],
    "mask": ["", "Causal()", "Window(before=8, after=8)", "Causal() & Window(before=8)",
             "Dilated(before=4, after=4, step=3)", "Window(before=4, after=4) | Global(tokens=2)",
             "longformer(window=16, tokens=1)", "bigbird(block=4, window=3, random=1)",
             "RandomBlocks(block=8, count=2, seed=0)", "~Window(before=2, after=2)"],
    "method": ["", "Nystrom(landmarks=16)", "Performer(features=64)", "Linformer(tokens=64, rank=16)"],
}  # fmt: skip
"""Parts to choose from, as text."""


def choices(lab: Lab, request: Request, job: Job) -> PartChoices:
    """Parts to choose from, and the sizes of a call with their default and largest value."""
    return {"choices": CHOICES, "sizes": {name: list(pair) for name, pair in SIZES.items()}}


CALLS = {"plan": plan, "choices": choices, "pictures": pictures, "dictionary": dictionary}
