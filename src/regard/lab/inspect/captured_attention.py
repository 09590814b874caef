"""One attention of a forward pass: q, k, v and the output are stored, all else is computed from these on request."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from ...attention.backends.edge_positions import fold_biases
from ...attention.backends.edges import EdgeScores
from ...attention.backends.edges import scores as edge_scores
from ...attention.backends.sinks import add_to_lse
from ...attention.call import check_call
from ...attention.look import look
from ...attention.parts.edges import Edges, sorted_edges
from ...attention.parts.parts import Parts
from ...attention.parts.positions import Rotary
from ...attention.plan import plan
from ...attention.view import View
from ...errors import BadInput, Unsupported
from ...nn.hooks.edit import ViewOptions, replace_head, view_of_weights
from ..protocol import Translated
from ..server.jobs import Job
from .attention_fields import AttentionFields, AttentionRow, HeadStatistics, OutputDifference, PositionFields
from .region import ROWS, HeadScores, RegionSummary, ScoreStages, Span, spaced_rows

FLOAT64_PAIRS = 1 << 22
"""Pairs of an attention's heads up to which its numbers are computed in float64."""
SAMPLED_ROWS = 64
"""Rows of a larger attention whose output is computed again for comparison."""


@dataclass(eq=False)
class CapturedAttention:
    """One attention of the pass. Tensors are `[heads or kv_heads, tokens, head_dim]`, as the backend received them."""

    name: str
    label: Translated
    layer: int
    role: str
    query_side: str
    key_side: str
    q: Tensor
    k: Tensor
    v: Tensor
    output: Tensor
    parts: Parts
    edits: dict[int, str | Tensor]
    value_lengths: Tensor | None = None
    rotary: str | None = None
    requested_backend: str = "auto"
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

    def describe(self) -> AttentionFields:
        """Names, sizes and parts, for a page to show before it requests numbers."""
        score, position, mask = self.parts.score, self.parts.position, self.parts.mask
        shown: PositionFields | None = None
        if position is not None:
            shown = {"line": str(position), "formula": position.formula, "in_q_and_k": bool(position.transforms)}
        elif self.rotary is not None:
            shown = {"line": self.rotary, "formula": Rotary.formula, "in_q_and_k": True}
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
            "score": {"line": str(score), "formula": score.formula, "scale": self.scores.scale(0)},
            "position": shown,
            "mask": None if mask is None else {"line": str(mask), "formula": mask.formula},
            "method": str(self.parts.method),
            "edited": {
                str(head): change if isinstance(change, str) else "weights" for head, change in self.edits.items()
            },
        }

    @cached_property
    def scores(self) -> HeadScores:
        """The scores of any region, in float64 where that is cheap."""
        fine = self.heads * self.queries * self.keys <= FLOAT64_PAIRS
        q, k, v = (x[None].double() if fine else x[None].float() for x in (self.q, self.k, self.v))
        return HeadScores(check_call(q, k, v, replace(self.parts, dropout=0.0)))

    @cached_property
    def backend(self) -> str:
        """The backend that ran it."""
        parts = self.parts
        with torch.no_grad():
            return plan(
                self.q[None],
                self.k[None],
                self.v[None],
                score=parts.score,
                position=parts.position,
                mask=parts.mask,
                method=parts.method,
                sink=parts.sink,
                bias=parts.bias,
                places=parts.places,
                edges=parts.edges,
                backend=self.requested_backend,
            ).backend

    def stages(self, head: int, rows: Span, keys: Span) -> tuple[ScoreStages, Tensor]:
        """A region's stages up to the score, and its effective weights; `[rows, keys]` each."""
        rows, keys = self.check_region(head, rows, keys)
        with self.lock, torch.no_grad():
            return self.scores.stages(head, rows, keys), self.effective_weights(head, rows, keys)

    def weights(self, head: int | None, rows: Span | None = None, keys: Span | None = None) -> Tensor:
        """Effective weights, `[rows, keys]`; of all heads `[heads, rows, keys]` when head is None."""
        rows, keys = self.check_region(head or 0, rows, keys)
        with self.lock, torch.no_grad():
            if head is not None:
                return self.effective_weights(head, rows, keys)
            return torch.stack([self.effective_weights(h, rows, keys) for h in range(self.heads)])

    def effective_weights(self, head: int, rows: Span, keys: Span) -> Tensor:
        """The weights that made the output: those of the edit where there was one."""
        change, exact = self.edits.get(head), self.scores.call.exact
        if change is None:
            return self.scores.weights(head, rows, keys)
        if isinstance(change, Tensor):
            return change[slice(*rows), slice(*keys)].to(exact)
        allowed = self.scores.allowed_pairs(head, self.scores.range(rows), keys).to(exact)
        if change == "silent":
            return allowed * 0.0
        return allowed / self.allowed_keys(head)[slice(*rows), None].clamp(min=1)

    def allowed_keys(self, head: int) -> Tensor:
        """How many keys each query may attend to, `[queries]`."""
        mask = self.scores.lowered.mask
        if isinstance(mask, Edges):
            return mask.sort(self.queries, self.keys).starts.diff()
        return self.scores.allowed_counts(head)

    def row(self, head: int, query: int, keys: Span | Tensor | None = None) -> AttentionRow:
        """The five stages of one query, with their operands: `[keys, …]`, and the output `[value dim]`.

        `keys` is a span, or the numbers of keys `[keys]` in any order.
        """
        rows, span = self.check_region(head, (query, query + 1), None if isinstance(keys, Tensor) else keys)
        columns = keys if isinstance(keys, Tensor) else self.scores.range(span)
        inside = columns - span[0]
        stages, weight = self.stages(head, rows, span)
        scores, lowered = self.scores, self.scores.lowered
        q, k = scores.operands(head, scores.range(rows), span)
        every = scores.values(head, scores.range(rows), (0, self.keys))
        v = every if every.dim() == 2 else every[0]
        with self.lock, torch.no_grad():
            whole = self.effective_weights(head, rows, (0, self.keys))
        return {
            "q": q[0],
            "k": k[inside],
            "v": v[columns],
            "kv_head": head // scores.group,
            "additive": None if lowered.weight is None else lowered.weight[head],
            "activation": lowered.activation if lowered.weight is not None else None,
            "slope": lowered.slope if lowered.activation == "leaky_relu" else None,
            "scale": scores.scale(head),
            "raw": stages.raw[0, inside],
            "scaled": stages.scaled[0, inside],
            "position": None if stages.position is None else stages.position[0, inside],
            "allowed": stages.allowed[0, inside],
            "score": stages.score[0, inside],
            "weight": weight[0, inside],
            "lse": float(scores.known_lse[head, query]) if head not in self.edits else None,
            "sum": float(whole.sum()),
            "mixed": (whole @ v.to(whole.dtype))[0],
            "output": self.output[head, query],
        }

    def map(self, head: int, shape: tuple[int, int], rows: Span | None, keys: Span | None, job: Job) -> Tensor:
        """A region pooled to at most `shape` cells: the mean over a bucket's queries of their weight on a bucket."""
        return self.summarize(head, shape, rows, keys, job, links=0).map

    def summarize(
        self,
        head: int,
        shape: tuple[int, int],
        rows: Span | None,
        keys: Span | None,
        job: Job,
        *,
        max_queries: int | None = None,
        links: int = 64,
        min_distance: int = 0,
    ) -> RegionSummary:
        """The map of a region, its curves and its largest weights. See `HeadScores.summarize`."""
        rows, keys = self.check_region(head, rows, keys)
        if head in self.edits:
            raise Unsupported(f"Head {head} of {self.name} is edited; a pooled view shows the model's own weights.")
        with job.hold(self.lock), torch.no_grad():
            return self.scores.summarize(
                head, shape, rows, keys, job, max_queries=max_queries, links=links, min_distance=min_distance
            )

    @cached_property
    def view(self) -> View:
        """The statistics of the effective weights, `[1, heads, …]`."""
        call = self.scores.call
        view = look(
            call.q,
            call.k,
            call.v,
            score=call.score,
            position=call.position,
            mask=call.mask,
            sink=call.sink,
            bias=call.bias,
            places=call.places,
            edges=call.edges,
        )
        options: ViewOptions = {"weights": False, "top": 0, "map": None}
        for head, change in self.edits.items():
            if isinstance(change, Tensor):
                view = replace_head(view, head, view_of_weights(change[None], options), 0)
            elif change == "uniform":
                equal = call.q.new_zeros(*call.q.shape[:3], 1), call.k.new_zeros(*call.k.shape[:3], 1)
                view = replace_head(view, head, look(*equal, mask=call.mask), head)
            else:
                view = replace_head(view, head, None, 0)
        return view

    def stats(self, special: list[int]) -> HeadStatistics:
        """Means over the queries that have an allowed key, `[heads]`.

        `entropy` in nats, `entropy_share` of its maximum (the logarithm of the allowed keys), `distance` in tokens,
        `peak`; `special` is the mean weight on special keys. `received [heads, keys]` is each key's total weight.
        """
        view = self.view
        alive = view.lse[0] > -torch.inf
        count = alive.sum(-1).clamp(min=1)
        mean = lambda x: (x * alive).sum(-1) / count  # noqa: E731
        received = view.received[0]
        return {
            "entropy": mean(view.entropy[0]),
            "entropy_share": torch.tensor([self.entropy_share(head, alive[head]) for head in range(self.heads)]),
            "distance": mean(view.distance[0]),
            "peak": mean(view.peak[0]),
            "special": received[:, special].sum(-1) / count,
            "received": received,
        }

    def entropy_share(self, head: int, alive: Tensor) -> float:
        """The mean of entropy / log(allowed keys) over the queries with more than one allowed key."""
        most = self.allowed_keys(head).double().log()
        several = alive & (most > 0)
        share = (self.view.entropy[0, head].double() / most)[several]
        return float(share.mean()) if len(share) else 0.0

    def value_norms(self, head: int, rows: Span | None = None, keys: Span | None = None) -> Tensor:
        """The norm of the vector that each key adds to each query, `[rows, keys]`: weight · ‖v W‖."""
        rows, keys = self.check_region(head, rows, keys)
        if self.value_lengths is None:
            raise Unsupported(f"{self.name} has no known output projection, so the norms cannot be computed.")
        return self.weights(head, rows, keys) * self.value_lengths[head, slice(*keys)].to(self.scores.call.exact)

    @cached_property
    def difference(self) -> OutputDifference:
        """The largest difference between the output that ran and Σ weight · v, over all rows or, of many, some."""
        every = self.heads * self.queries * self.keys <= FLOAT64_PAIRS
        device = self.q.device
        rows = (
            torch.arange(self.queries, device=device) if every else spaced_rows((0, self.queries), SAMPLED_ROWS, device)
        )
        largest = 0.0
        with self.lock, torch.no_grad():
            for head in (h for h in range(self.heads) if h not in self.edits):
                for chunk in rows.split(ROWS):
                    output = self.output[head][chunk].to(self.scores.call.exact)
                    largest = max(largest, float((self.scores.output(head, chunk) - output).abs().max()))
        return {"largest": largest, "rows": len(rows), "of": self.queries}

    def edge_weights(self) -> tuple[Tensor, Tensor]:
        """A graph's edges `[2, edges]` (sources, then targets) and their weights `[heads, edges]`."""
        lowered = self.scores.lowered
        if not isinstance(lowered.mask, Edges):
            raise Unsupported(f"{self.name} has no graph as its mask, so there are no edges. Request its map instead.")
        with self.lock, torch.no_grad():
            graph = EdgeScores(fold_biases(lowered, sorted_edges(lowered.mask, lowered.grid)))
            score = edge_scores(graph)  # [edges, heads]
            most = graph.reduce(score, "max")
            lse = graph.reduce((score - graph.expand_rows(most)).exp_(), "sum").log_() + most  # [queries, heads]
            if lowered.sink is not None:
                lse = add_to_lse(lse.mT, lowered.sink).mT
            weight = (score - graph.expand_rows(lse)).exp_().mT
        edges = graph.csr
        for head, change in self.edits.items():
            if isinstance(change, Tensor):
                weight[head] = change[edges.rows, edges.columns].to(weight.dtype)
            else:
                weight[head] = 0.0 if change == "silent" else 1.0 / self.allowed_keys(head)[edges.rows]
        return torch.stack([edges.columns, edges.rows]), weight

    def check_region(self, head: int, rows: Span | None, keys: Span | None) -> tuple[Span, Span]:
        """The region, the whole by default; raises `BadInput` where it does not exist."""
        if not isinstance(head, int) or isinstance(head, bool) or not 0 <= head < self.heads:
            raise BadInput(f"{self.name} has heads 0 … {self.heads - 1}; got head {head!r}.")
        spans = []
        for name, span, size in (("queries", rows, self.queries), ("keys", keys, self.keys)):
            a, b = (0, size) if span is None else (span[0], span[1])
            if not (isinstance(a, int) and isinstance(b, int) and 0 <= a < b <= size):
                raise BadInput(f"{self.name} has {size} {name}; got {name} {a!r} to {b!r}.")
            spans.append((a, b))
        return spans[0], spans[1]
