"""Attention's parts as text and as modules: what a configuration says, and what a layer learns.

A configuration names parts by the line that makes them, `"Causal() & Window(before=255)"`, so that a file, a command
line and a form say the same. A part that carries learned tensors is made anew at each call from a module's parameters.
"""

from __future__ import annotations

import ast
import difflib
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..attention.cache import constant
from ..attention.parts import masks, methods, positions, scores
from ..attention.parts.mask import Mask
from ..attention.parts.part import Part
from ..errors import BadInput
from .bigbird import BigBirdBlocks, BigBirdScore
from .cache import Cache
from .embeddings.text import sinusoids

MASKS = {
    name: getattr(masks, name)
    for name in (
        "Everything",
        "Causal",
        "Window",
        "Dilated",
        "Global",
        "RandomBlocks",
        "NearBlocks",
        "longformer",
        "bigbird",
    )
} | {"BigBirdBlocks": BigBirdBlocks}


def read_mask(text: str | Mask | None) -> Mask | None:
    """The mask that a line of text makes; `&`, `|`, `~` combine. A mask, or None, is handed through.

    >>> read_mask("Causal() & Window(before=255)")
    Causal() & Window(before=255)
    """
    if text is None or isinstance(text, Mask):
        return text
    return combine(parse(text), text)


def combine(node: ast.expr, text: str) -> Mask:
    """The mask of a parsed line."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
        a, b = combine(node.left, text), combine(node.right, text)
        return a & b if isinstance(node.op, ast.BitAnd) else a | b
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return ~combine(node.operand, text)
    name, arguments = call_of(node, text)
    return known(name, MASKS, text)(**arguments)


def read_call(text: str) -> tuple[str, dict[str, Any]]:
    """Name and arguments of a line such as `"Alibi()"` or `"T5Bias(buckets=32)"`."""
    return call_of(parse(text), text)


def parse(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise BadInput(f"{text!r} is not the line of a part ({error.msg}). Write it as Python: 'Causal()'.") from None


def call_of(node: ast.expr, text: str) -> tuple[str, dict[str, Any]]:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)) or node.args:
        raise BadInput(f"{text!r} is not the line of a part. Write its name and named arguments: 'Window(before=255)'.")
    try:
        return node.func.id, {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
    except ValueError:
        raise BadInput(f"{text!r} has an argument that is no plain number, text or list. Write it out.") from None


def known(name: str, choices: dict[str, Any], text: str) -> Any:
    """The choice of that name, or `BadInput` naming the nearest."""
    if name not in choices:
        near = difflib.get_close_matches(name, choices, n=1) or list(choices)
        raise BadInput(f"{text!r}: there is no {name} here. Did you mean {near[0]}? Known: {', '.join(choices)}.")
    return choices[name]


class Fixed(nn.Module):
    """A part that learns nothing."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        self.part = part

    def forward(self) -> Part:
        return self.part

    def extra_repr(self) -> str:
        return repr(self.part)


class LearnedBilinear(nn.Module):
    """qᵀWk, W beginning as the identity over √head_dim."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(head_dim).repeat(heads, 1, 1) * head_dim**-0.5)

    def forward(self) -> scores.Bilinear:
        return scores.Bilinear(self.weight)


class LearnedAdditive(nn.Module):
    """wᵀ·act(q + k), one w a head."""

    def __init__(self, heads: int, head_dim: int, activation: str = "tanh", slope: float = 0.2) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(heads, head_dim) * head_dim**-0.5)
        self.activation, self.slope = activation, slope

    def forward(self) -> scores.Additive:
        return scores.Additive(self.weight, self.activation, self.slope)


class LearnedCosine(nn.Module):
    """scale·cos(q, k), the scale learned a head."""

    def __init__(self, heads: int, head_dim: int, scale: float = 10.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((heads,), scale))

    def forward(self) -> scores.Cosine:
        return scores.Cosine(self.scale)


class LearnedBias(nn.Module):
    """A number a head and distance, up to `reach` either way."""

    def __init__(self, heads: int, head_dim: int, reach: int = 128) -> None:
        super().__init__()
        self.table, self.zero = nn.Parameter(torch.zeros(heads, 2 * reach + 1)), reach

    def forward(self) -> positions.Bias:
        return positions.Bias(self.table, self.zero)


class LearnedT5Bias(nn.Module):
    """T5's buckets of distances; `table [heads, buckets]`."""

    def __init__(
        self, heads: int, head_dim: int, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
    ) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(heads, buckets) * 0.1)
        self.max_distance, self.bidirectional = max_distance, bidirectional

    def forward(self) -> positions.T5Bias:
        return positions.T5Bias(self.table, self.bidirectional, self.max_distance)


class LearnedShaw(nn.Module):
    """A vector a head and distance, up to `reach` either way; `shared` gives every head the same, as in the paper."""

    def __init__(self, heads: int, head_dim: int, reach: int = 16, shared: bool = True) -> None:
        super().__init__()
        self.heads, self.zero = heads, reach
        self.keys = nn.Parameter(torch.randn(1 if shared else heads, 2 * reach + 1, head_dim) * head_dim**-0.5)

    def forward(self) -> positions.Shaw:
        return positions.Shaw(self.keys.expand(self.heads, -1, -1), self.zero)


@dataclass(frozen=True)
class Distances:
    """Projected distances 0, 1, …, as a cache keeps them for all rows; one `[heads, distances, head_dim]` a layer."""

    tables: tuple[Tensor, ...]


class LearnedTransformerXL(nn.Module):
    """Transformer-XL's position (Dai et al. 2019): sinusoids of the distance, projected anew in each of `layers`.

    The paper's W_{k,R} of all layers stand one above the other in `project`; `content_bias` is its u and
    `position_bias` its v, one for all layers or (`untied`) one each. Distances beyond `reach` count as `reach`.
    """

    def __init__(
        self, heads: int, head_dim: int, dim: int, layers: int, untied: bool = False, reach: int | None = None
    ) -> None:
        super().__init__()
        self.heads, self.head_dim, self.dim, self.count, self.reach = heads, head_dim, dim, layers, reach
        self.project = nn.Linear(dim, layers * heads * head_dim, bias=False)
        own = (layers if untied else 1, heads, head_dim)
        self.content_bias, self.position_bias = (nn.Parameter(torch.randn(own) * 0.02) for _ in range(2))

    def layers(self, x: Tensor, cache: Cache | None) -> list[positions.TransformerXL]:
        """The position of each layer, for `x [batch, tokens, dim]` after what the cache remembers."""
        seen = x.shape[1] + (0 if cache is None else cache.remembered)
        tables = self.tables(max(seen if self.reach is None else min(seen, self.reach + 1), 1), x.device, cache)
        u, v = (bias.expand(self.count, -1, -1) for bias in (self.content_bias, self.position_bias))
        return [positions.TransformerXL(tables[n], u[n], v[n]) for n in range(self.count)]

    def tables(self, distances: int, device: torch.device, cache: Cache | None) -> tuple[Tensor, ...]:
        """The projected distances; while weights stand still a cache keeps them, with some to spare."""
        if cache is None or torch.is_grad_enabled():
            return self.projected(distances, device)
        found = cache.get("distances")
        if found is None or found.tables[0].shape[1] < distances:
            room = distances if found is None else distances + distances // 2
            found = Distances(self.projected(room if self.reach is None else min(room, self.reach + 1), device))
            cache.put("distances", found)
        return found.tables

    def projected(self, distances: int, device: torch.device) -> tuple[Tensor, ...]:
        waves = sinusoids(torch.arange(distances, device=device), self.dim, layout="halves")
        made = self.project(waves.to(self.project.weight.dtype))
        return made.unflatten(-1, (self.count, self.heads, self.head_dim)).permute(1, 2, 0, 3).unbind(0)


class LearnedLinformer(nn.Module):
    """Keys and values projected from `tokens` to `rank` before they are attended to.

    Fewer tokens have the first columns of the projections, as if zeros filled up the rest.
    """

    def __init__(self, heads: int, head_dim: int, tokens: int, rank: int) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.randn(rank, tokens) * rank**-0.5)
        self.values = nn.Parameter(torch.randn(rank, tokens) * rank**-0.5)

    def forward(self, tokens: int | None = None) -> methods.Linformer:
        most = self.keys.shape[1]
        if tokens is not None and tokens > most:
            raise BadInput(
                f"There are {tokens} tokens, and Linformer(tokens={most}) projects {most} at most. Cut them, or build "
                f"it with tokens={tokens}."
            )
        return methods.Linformer(self.keys[:, :tokens], self.values[:, :tokens])


class Turn:
    """Rotary's angles for the tokens of one pass: what every layer turns its q and k by."""

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        self.cos, self.sin = cos, sin

    def __call__(self, x: Tensor) -> Tensor:
        """x `[batch, heads, tokens, head_dim]`, turned (halves layout)."""
        half = self.cos.shape[-1]
        cos, sin = self.cos.to(x.device), self.sin.to(x.device)
        a, b, rest = x[..., :half].to(cos.dtype), x[..., half : 2 * half].to(cos.dtype), x[..., 2 * half :]
        turned = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)
        return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned


class Rotary(nn.Module):
    """Turns q and k by their place before the keys are kept, so that a cache holds turned keys.

    `factor`, `low`, `high`, `original` stretch slow frequencies as Llama 3.1 does; `linear` divides every place.
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        base: float = 10000.0,
        dim: int | None = None,
        linear: float = 1.0,
        factor: float = 1.0,
        low: float = 1.0,
        high: float = 4.0,
        original: int = 8192,
    ) -> None:
        super().__init__()
        dim = dim or head_dim
        positions.Rotary(base, dim)
        rate = [base ** -(m / dim) / linear for m in range(0, dim, 2)]
        self.rate = tuple(stretched(one, factor, low, high, original) for one in rate)

    def turn(self, places: Tensor, dtype: torch.dtype) -> Turn:
        """The angles of `places [tokens]`."""
        angle = places.to(torch.float64)[:, None] * rates(self.rate, places.device)  # [tokens, dim / 2]
        exact = torch.promote_types(dtype, torch.float32)
        return Turn(angle.cos().to(exact), angle.sin().to(exact))


@constant
def rates(each: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(each, dtype=torch.float64, device=device)


def stretched(rate: float, factor: float, low: float, high: float, original: int) -> float:
    """Llama 3.1's rate: as it was if it turns `high` times in `original` tokens, over `factor` if not even `low`."""
    turns = original * rate / (2 * math.pi)
    share = min(max((turns - low) / (high - low), 0.0), 1.0)
    return rate * (share + (1 - share) / factor)


SCORES = {
    "Dot": scores.Dot,
    "Bilinear": LearnedBilinear,
    "Cosine": LearnedCosine,
    "Additive": LearnedAdditive,
    "BigBirdDot": BigBirdScore,
}
POSITIONS = {
    "Alibi": positions.Alibi,
    "Rotary": Rotary,
    "Bias": LearnedBias,
    "T5Bias": LearnedT5Bias,
    "Shaw": LearnedShaw,
    "TransformerXL": LearnedTransformerXL,
}
METHODS = {
    "Exact": methods.Exact,
    "Nystrom": methods.Nystrom,
    "Performer": methods.Performer,
    "Linformer": LearnedLinformer,
}


def part_module(what: str | Part | nn.Module, choices: dict[str, Any], heads: int, head_dim: int) -> nn.Module:
    """A module that gives the part: from its line, the part itself, or such a module."""
    if isinstance(what, nn.Module):
        return what
    if isinstance(what, Part):
        return Fixed(what)
    name, arguments = read_call(what)
    made = known(name, choices, what)
    try:
        return made(heads, head_dim, **arguments) if issubclass(made, nn.Module) else Fixed(made(**arguments))
    except TypeError as error:
        raise BadInput(f"{what!r}: {error}. Look at help(regard.nn.parts.{made.__name__}).") from None
