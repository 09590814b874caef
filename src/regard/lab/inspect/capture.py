"""One forward pass of a model with all that its attentions were asked and answered.

The model runs as it always does. What is kept of each attention is linear in the tokens: q, k, v, the output and the
parts; everything else is computed from these when it is asked for, a region at a time (`region.py`).
"""

from __future__ import annotations

import re
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ...attention.backends import edges as along
from ...attention.call import make_call
from ...attention.look import look
from ...attention.parts.edges import Edges
from ...attention.parts.methods import Exact
from ...attention.parts.positions import Rotary
from ...attention.plan import plan
from ...attention.view import View
from ...errors import BadInput, RegardError, Unsupported
from ...nn.explain import output_projection
from ...nn.hooks.edit import OPEN, edit, view_of, with_head
from ...nn.hooks.modules import arguments, attentions
from ..inputs.prepared import Prepared, Token
from ..server.jobs import Job
from .region import ROWS, Regions, Span, Stages, Survey, spread

FINE = 1 << 22
"""Pairs of an attention's heads up to which its numbers are computed in float64."""
POOL = "pool"
"""The side of queries that are a head's own and stand for no token."""
CHECKED = 64
"""Rows of a larger attention whose output is computed again to be compared with the one that ran."""


@dataclass(eq=False)
class Attention:
    """One attention of the pass. Tensors are `[heads or kv_heads, tokens, head_dim]`, as the backend was given them."""

    name: str
    label: dict[str, str]
    layer: int
    role: str
    query_side: str
    key_side: str
    q: Tensor
    k: Tensor
    v: Tensor
    output: Tensor
    parts: dict[str, Any]
    edited: dict[int, str | Tensor]
    lengths: Tensor | None = None
    turned: str | None = None
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def heads(self) -> int:
        return self.q.shape[0]

    @property
    def kv_heads(self) -> int:
        return self.k.shape[0]

    @property
    def queries(self) -> int:
        return self.q.shape[1]

    @property
    def keys(self) -> int:
        return self.k.shape[1]

    @property
    def bytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in (self.q, self.k, self.v, self.output))

    def describe(self) -> dict[str, Any]:
        """What a page needs to know before it asks for numbers."""
        score, mask = self.regions.call.score, self.parts.get("mask")
        return {
            "name": self.name,
            "label": self.label,
            "layer": self.layer,
            "role": self.role,
            "query_side": self.query_side,
            "key_side": self.key_side,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "queries": self.queries,
            "keys": self.keys,
            "head_dim": self.q.shape[2],
            "value_dim": self.v.shape[2],
            "score": {"line": str(score), "formula": score.formula, "scale": self.regions.factor(0)},
            "position": self.position_line(),
            "mask": None if mask is None else {"line": str(mask), "formula": mask.formula},
            "method": str(self.parts.get("method") or "Exact()"),
            "edited": {str(head): how if isinstance(how, str) else "weights" for head, how in self.edited.items()},
        }

    def position_line(self) -> dict[str, Any] | None:
        """What distance does, also where a layer has turned q and k before they came here."""
        part = self.parts.get("position")
        if part is not None:
            return {"line": str(part), "formula": part.formula, "in_q_and_k": bool(part.turns)}
        return self.turned and {"line": self.turned, "formula": Rotary.formula, "in_q_and_k": True}  # type: ignore[return-value]

    @cached_property
    def regions(self) -> Regions:
        """The stages of any region, in float64 while that is cheap."""
        fine = self.heads * self.queries * self.keys <= FINE
        q, k, v = (x[None].double() if fine else x[None].float() for x in (self.q, self.k, self.v))
        parts: dict[str, Any] = {name: self.parts.get(name) for name in ("score", "position", "mask")}
        return Regions(make_call(q, k, v, **parts))

    @cached_property
    def backend(self) -> str:
        """Who ran it."""
        named = self.parts.get("backend", "auto")
        parts: dict[str, Any] = {name: self.parts.get(name) for name in ("score", "position", "mask", "method")}
        with torch.no_grad():
            return plan(self.q[None], self.k[None], self.v[None], **parts, backend=named).backend

    def stages(self, head: int, rows: Span, keys: Span) -> tuple[Stages, Tensor]:
        """A region's stages up to the score, and its weights in effect; `[rows, keys]` each."""
        rows, keys = self.need_region(head, rows, keys)
        with self.lock, torch.no_grad():
            return self.regions.stages(head, rows, keys), self.in_effect(head, rows, keys)

    def weights(self, head: int | None, rows: Span | None = None, keys: Span | None = None) -> Tensor:
        """Weights in effect, `[rows, keys]`; of all heads `[heads, rows, keys]` when head is None."""
        rows, keys = self.need_region(head or 0, rows, keys)
        with self.lock, torch.no_grad():
            if head is not None:
                return self.in_effect(head, rows, keys)
            return torch.stack([self.in_effect(h, rows, keys) for h in range(self.heads)])

    def in_effect(self, head: int, rows: Span, keys: Span) -> Tensor:
        """The weights that the output was mixed by: an edit's where there was one."""
        how = self.edited.get(head)
        if how is None:
            return self.regions.weights(head, rows, keys)
        if isinstance(how, Tensor):
            return how[slice(*rows), slice(*keys)].to(self.regions.call.exact)
        allowed = self.regions.allowed(head, self.regions.range(rows), keys).to(self.regions.call.exact)
        if how == "silent":
            return allowed * 0.0
        return allowed / self.allowed_keys(head)[slice(*rows), None].clamp(min=1)

    def allowed_keys(self, head: int) -> Tensor:
        """How many keys each query may see, `[queries]`."""
        mask = self.regions.problem.mask
        if isinstance(mask, Edges):
            return mask.order(self.queries, self.keys).starts.diff()
        return self.regions.counts(head)

    def row(self, head: int, query: int, keys: Span | Tensor | None = None) -> dict[str, Any]:
        """The five stages of one query, with their operands: `[keys, …]`, and the output `[value dim]`.

        `keys` is a span, or the numbers of keys `[keys]` in any order.
        """
        span = None if isinstance(keys, Tensor) else keys
        (rows, span) = self.need_region(head, (query, query + 1), span)
        at = self.regions.range(span) if keys is None or not isinstance(keys, Tensor) else keys
        here = at - span[0]
        stages, weight = self.stages(head, rows, span)
        r = self.regions
        q, k = r.operands(head, r.range(rows), span)
        v = r.problem.v[0, head // r.group]
        with self.lock, torch.no_grad():
            whole = self.in_effect(head, rows, (0, self.keys))
        return {
            "q": q[0],
            "k": k[here],
            "v": v[at],
            "kv_head": head // r.group,
            "additive": None if r.problem.weight is None else r.problem.weight[head],
            "activation": r.problem.activation if r.problem.weight is not None else None,
            "slope": r.problem.slope if r.problem.activation == "leaky_relu" else None,
            "scale": r.factor(head),
            "raw": stages.raw[0, here],
            "scaled": stages.scaled[0, here],
            "position": None if stages.position is None else stages.position[0, here],
            "allowed": stages.allowed[0, here],
            "score": stages.score[0, here],
            "weight": weight[0, here],
            "lse": float(r.known_lse[head, query]) if head not in self.edited else None,
            "sum": float(whole.sum()),
            "mixed": (whole @ v.to(whole.dtype))[0],
            "output": self.output[head, query],
        }

    def map(self, head: int, shape: tuple[int, int], rows: Span | None, keys: Span | None, job: Job) -> Tensor:
        """A region pooled to at most `shape` cells: the mean over a bucket's queries of their weight on a bucket."""
        return self.survey(head, shape, rows, keys, job, links=0).map

    def survey(
        self, head: int, shape: tuple[int, int], rows: Span | None, keys: Span | None, job: Job, **how: Any
    ) -> Survey:
        """The map of a region, its curves and its strongest links. See `Regions.survey`."""
        rows, keys = self.need_region(head, rows, keys)
        if head in self.edited:
            raise Unsupported(f"Head {head} of {self.name} is edited; a pooled view shows the model's own weights.")
        with job.holding(self.lock), torch.no_grad():
            return self.regions.survey(head, shape, rows, keys, job, **how)

    @cached_property
    def view(self) -> View:
        """The statistics of the weights in effect, `[1, heads, …]`."""
        r = self.regions
        call = r.call
        found = look(call.q, call.k, call.v, score=call.score, position=call.position, mask=call.mask)
        wish: dict[str, Any] = {"weights": False, "top": 0, "map": None}
        for head, how in self.edited.items():
            if isinstance(how, Tensor):
                found = with_head(found, head, view_of(how[None], wish), 0)
            elif how == "uniform":
                alike = call.q.new_zeros(*call.q.shape[:3], 1), call.k.new_zeros(*call.k.shape[:3], 1)
                found = with_head(found, head, look(*alike, mask=call.mask), head)
            else:
                found = with_head(found, head, None, 0)
        return found

    def stats(self, special: list[int]) -> dict[str, Tensor]:
        """Of each head, means over the queries that look at something, `[heads]`.

        `entropy` in nats and as a share of the most there can be (the logarithm of the keys allowed), `distance` in
        tokens, `peak`; `special`: the mean weight on special keys. `received [heads, keys]` is what each key gets.
        """
        view = self.view
        alive = view.lse[0] > -torch.inf
        count = alive.sum(-1).clamp(min=1)
        mean = lambda x: (x * alive).sum(-1) / count  # noqa: E731
        share = [self.entropy_share(head, view.entropy[0, head], alive[head]) for head in range(self.heads)]
        received = view.received[0]
        return {
            "entropy": mean(view.entropy[0]),
            "entropy_share": torch.tensor(share),
            "distance": mean(view.distance[0]),
            "peak": mean(view.peak[0]),
            "special": received[:, special].sum(-1) / count,
            "received": received,
        }

    def entropy_share(self, head: int, entropy: Tensor, alive: Tensor) -> float:
        """The mean of entropy / log(allowed keys) over the queries that have a choice."""
        most = self.allowed_keys(head).double().log()
        free = alive & (most > 0)
        return float((entropy.double() / most)[free].mean()) if bool(free.any()) else 0.0

    def value_norms(self, head: int, rows: Span | None = None, keys: Span | None = None) -> Tensor:
        """How long the vector is that each key adds to each query, `[rows, keys]`: weight · ‖v W‖."""
        rows, keys = self.need_region(head, rows, keys)
        if self.lengths is None:
            raise Unsupported(f"{self.name} has no output projection that is known, so its values have no length.")
        return self.weights(head, rows, keys) * self.lengths[head, slice(*keys)].to(self.regions.call.exact)

    def difference(self) -> dict[str, Any]:
        """How far the output that is shown lies from the one that ran, over all rows or, of many, over some."""
        return self.compared

    @cached_property
    def compared(self) -> dict[str, Any]:
        every = self.heads * self.queries * self.keys <= FINE
        device = self.q.device
        rows = torch.arange(self.queries, device=device) if every else spread((0, self.queries), CHECKED, device)
        worst = 0.0
        with self.lock, torch.no_grad():
            for head in (h for h in range(self.heads) if h not in self.edited):
                for some in rows.split(ROWS):
                    ran = self.output[head][some].to(self.regions.call.exact)
                    worst = max(worst, float((self.regions.mixed(head, some) - ran).abs().max()))
        return {"largest": worst, "rows": len(rows), "of": self.queries}

    def edge_weights(self) -> tuple[Tensor, Tensor]:
        """A graph's edges `[2, edges]` (sources, then targets) and their weights `[heads, edges]`."""
        problem = self.regions.problem
        if not isinstance(problem.mask, Edges):
            raise Unsupported(f"{self.name} has no graph for a mask, so there are no edges to list. Ask for its map.")
        with self.lock, torch.no_grad():
            graph = along.Graph(problem)
            score = along.scores(graph)  # [edges, heads]
            lse = (score - graph.at_rows(graph.reduce(score, "max"))).exp_()
            weight = (lse / graph.at_rows(graph.reduce(lse, "sum"))).mT
        order = graph.order
        for head, how in self.edited.items():
            if isinstance(how, Tensor):
                weight[head] = how[order.rows, order.columns].to(weight.dtype)
            else:
                weight[head] = 0.0 if how == "silent" else 1.0 / self.allowed_keys(head)[order.rows]
        return torch.stack([order.columns, order.rows]), weight

    def need_region(self, head: int, rows: Span | None, keys: Span | None) -> tuple[Span, Span]:
        """The region, the whole where it was not said; `BadInput` where it is not there."""
        if not isinstance(head, int) or isinstance(head, bool) or not 0 <= head < self.heads:
            raise BadInput(f"{self.name} has heads 0 … {self.heads - 1}; head {head!r} was asked for.")
        found = []
        for name, span, size in (("queries", rows, self.queries), ("keys", keys, self.keys)):
            a, b = (0, size) if span is None else (span[0], span[1])
            if not (isinstance(a, int) and isinstance(b, int) and 0 <= a < b <= size):
                raise BadInput(f"{self.name} has {size} {name}; {name} {a!r} to {b!r} were asked for.")
            found.append((a, b))
        return found[0], found[1]


@dataclass(eq=False)
class Capture:
    """A pass: what the model was given as tokens, its attentions in the order they ran, and what it answered."""

    tokens: dict[str, list[Token]]
    attentions: list[Attention]
    prediction: dict[str, Any]
    about: dict[str, Any]
    logits: Tensor | None

    @property
    def bytes(self) -> int:
        return sum(attention.bytes for attention in self.attentions)

    def attention(self, which: Any) -> Attention:
        """The attention of that number or name."""
        for n, attention in enumerate(self.attentions):
            if attention.name == which or (isinstance(which, int) and not isinstance(which, bool) and n == which):
                return attention
        raise BadInput(f"There are attentions 0 … {len(self.attentions) - 1}; {which!r} was asked for.")

    def special(self, side: str) -> list[int]:
        """The places of a side's special tokens."""
        return [n for n, token in enumerate(self.tokens.get(side, ())) if token.special]


def capture(model: nn.Module, prepared: Prepared, edits: dict[Any, Any], job: Job, seed: int = 0) -> Capture:
    """Run the model once and keep what its attentions did; `edits` are as `regard.edit` takes them."""
    found = attentions(model)
    kept: list[Attention] = []
    done = 0

    def keeper(name: str):
        def keep(attend: nn.Module, args: tuple, kwargs: dict[str, Any], output: Tensor) -> None:
            nonlocal done
            done += 1
            job.tell(min(done, len(found)), len(found), placed(name, prepared.side)[1])
            kept.append(record(model, name, attend, arguments(*args, **kwargs), output, prepared.side))

        return keep

    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        for name, attend in found.items():
            handle = attend.register_forward_hook(keeper(name), with_kwargs=True)
            stack.callback(handle.remove)
        if edits:
            stack.enter_context(edit(model, edits, generator=torch.Generator().manual_seed(seed)))
        job.check()
        output = model(**prepared.arguments)
    last = {one.name: one for one in kept}  # of an attention that is called several times, its last call
    return Capture(
        with_pool(prepared.tokens, list(last.values())),
        list(last.values()),
        prepared.answer(output),
        prepared.about,
        getattr(output, "logits", None),
    )


def with_pool(tokens: dict[str, list[Token]], kept: list[Attention]) -> dict[str, list[Token]]:
    """The tokens, with one for each query that a head of the model asks all of them."""
    count = max((one.queries for one in kept if one.query_side == POOL), default=0)
    return tokens | {POOL: [Token("[pool]", special=True)] * count} if count else tokens


def record(model: nn.Module, name: str, attend: Any, asked: tuple, output: Tensor, side: str) -> Attention:
    """What one call was asked and answered."""
    q, k, v, parts = asked
    method = parts.get("method")
    if method is not None and not isinstance(method, Exact):
        raise Unsupported(f"{name} uses {method}, which never forms the weights of queries on keys: nothing to show.")
    if q.shape[0] != 1:
        raise Unsupported(f"{name} ran with a batch of {q.shape[0]}; the lab shows one input at a time.")
    edited = {
        head: used if isinstance(used, str) else used[0]
        for head, used in OPEN.get(attend, {}).items()
        if used is not None
    }
    layer, label, role, sides = placed(name, side)
    q, k, v, out = (x.detach()[0] for x in (q, k, v, output))
    rotary = turned(model) if role == "self" else None
    lengths = lengths_of(model, name, q, v)
    return Attention(name, label, layer, role, *sides, q, k, v, out, parts, edited, lengths, rotary)


def placed(name: str, read: str) -> tuple[int, dict[str, str], str, tuple[str, str]]:
    """Layer, label, role and sides of an attention, from its name and the side that the model reads."""
    number = next((int(part) for part in name.split(".") if part.isdigit()), 0)
    cross = name.rpartition(".")[2].startswith("cross") or name == "decoder.look"  # a state that looks at the source
    front = name.split(".")[0]
    side = {"decoder": "target", "image": "image", "text": "source"}.get(front, read)
    tower = {"decoder": ("decoder", "解码器"), "image": ("image", "图像")}.get(front)
    what = ("cross-attention", "交叉注意力") if cross else ("self-attention", "自注意力")
    extra = re.search(r"attend_(\w+)$", name)
    en = [*([tower[0]] if tower else []), f"layer {number}", what[0], *([extra[1]] if extra else [])]
    zh = [*([tower[1]] if tower else []), f"第 {number} 层", what[1], *([extra[1]] if extra else [])]
    sides = (side, read) if cross else (side, side)
    if front == "head":  # one query of the head's own asks all tokens
        en, zh, cross, sides = ["pooling attention"], ["汇聚注意力"], True, (POOL, side)
    return number, {"en": " · ".join(en), "zh": " · ".join(zh)}, "cross" if cross else "self", sides


def turned(model: nn.Module) -> str | None:
    """The position that has turned q and k before they came here, as its line; None where nothing has."""
    for config in (getattr(model, "config", None), getattr(getattr(model, "config", None), "stack", None)):
        position = getattr(config, "position", None)
        if isinstance(position, str) and position.startswith("Rotary"):
            return position
    return None


def lengths_of(model: nn.Module, name: str, q: Tensor, v: Tensor) -> Tensor | None:
    """‖v_j W_h‖ of each head and key, `[heads, keys]`, W_h the part of the output projection that reads head h."""
    try:
        projection = output_projection(model, name).detach()
    except (RegardError, AttributeError):
        return None
    heads, width = q.shape[0], v.shape[2]
    if projection.dim() != 2 or projection.shape[1] != heads * width:
        return None
    values = v.float().repeat_interleave(heads // v.shape[0], dim=0)
    by_head = projection.float().unflatten(1, (heads, width)).permute(1, 2, 0)  # [heads, value dim, dim]
    if v.shape[1] * projection.shape[0] > 1 << 24:
        by_head = torch.linalg.qr(by_head.mT, mode="r").R.mT
    return (values @ by_head).norm(dim=-1)
