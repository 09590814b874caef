"""Random calls as people make them, each beside the best of what torch offers for the same result.

A call is drawn from how attention is used: training, prefill and decoding, batches of sentences and long documents,
every score, position and mask. The alternatives are what a user would write instead: SDPA, plain or with mask and bias
as a tensor, FlexAttention compiled (on a GPU), and the formula itself, eager and compiled. Results and gradients are
compared before anything is timed. The ratio of a call is the time of the fastest alternative over ours.
"""

import itertools
import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, scaled_dot_product_attention

import regard as rg
from regard import machine
from regard.attention.call import make_call
from regard.attention.parts.mask import Mask
from regard.attention.parts.positions.distance_bias import t5_bucket
from regard.bench.measure import Call, relative_error

PAIRS = {"cuda": 1 << 30, "cpu": 1 << 25}  # of a call over all heads, at most
ELEMENTS = {"cuda": 1 << 28, "cpu": 1 << 24}  # pairs × head_dim of additive scores, at most
TOKENS = {"cuda": (16, 65_536), "cpu": (16, 2_048)}
BATCHES = {"cuda": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512), "cpu": (1, 2, 4, 8, 16)}
DTYPES = {"cuda": (torch.bfloat16, torch.bfloat16, torch.float16, torch.float32), "cpu": (torch.float32,)}
HEAD_DIMS = (16, 32, 64, 64, 64, 80, 96, 128, 128, 256, 512)
MASKS = ("none", "none", "causal", "causal", "window", "causal window", "lengths", "documents", "prefix", "longformer")
POSITIONS = ("none",) * 6 + ("Alibi", "T5Bias", "Bias")
TOLERANCE = {torch.bfloat16: 6e-2, torch.float16: 2e-2, torch.float32: 1e-3}  # formulas round every step
FLEX_TOKENS = 128  # its blocks; shorter calls are padded to them by nobody
DENSE = 1 << 30  # elements of a mask or score tensor, at most
FLEX_PAIRS = 1 << 24  # of a call, at least: fewer take SDPA less time than the host needs to start FlexAttention
SLOW = 3.0  # times the fastest alternative that another may take before it is timed no further
BUDGETS = {"cuda": 0.1, "cpu": 0.25}  # seconds that each alternative of a call is timed for


class PromptMask(Mask):
    """A mask of a user's own, with `allow` alone: the first tokens are seen by all, the others by later ones."""

    def __init__(self, tokens: int):
        self.tokens = tokens

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) | (j < self.tokens)


@dataclass(frozen=True)
class SurveyCall:
    """One call: what it is for, its sizes and its parts."""

    use: str
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int
    dtype: str
    score: str
    position: str
    mask: str
    seed: int

    def __str__(self) -> str:
        heads = str(self.heads) if self.heads == self.kv_heads else f"{self.heads}/{self.kv_heads}"
        parts = " · ".join(x for x in (self.score, self.position, self.mask) if x != "none")
        size = f"B{self.batch} H{heads} Q{self.queries} K{self.keys} D{self.head_dim}"
        return f"{self.use}: {size} {self.dtype}, {parts}"

    @property
    def trains(self) -> bool:
        return self.use == "training"


def draw_call(draw: random.Random, device: str) -> SurveyCall:
    """A random call that fits the device."""
    while True:
        use = draw.choice(("training", "training", "prefill", "decoding"))
        low, high = (math.log2(x) for x in TOKENS[device])
        keys = round(2 ** draw.uniform(low, high))
        queries = 1 if use == "decoding" else keys
        heads = draw.choice((1, 2, 4, 8, 12, 16, 32))
        kv_heads = heads // draw.choice((1, 1, 1, 2, 4)) or 1
        additive = draw.random() < 0.12
        call = SurveyCall(
            use,
            draw.choice(BATCHES[device]),
            heads,
            kv_heads if heads % kv_heads == 0 else heads,
            draw.randint(1, 60) if additive and draw.random() < 0.7 else queries,
            min(keys, 2_000) if additive else keys,
            draw.choice(HEAD_DIMS),
            str(draw.choice(DTYPES[device])).removeprefix("torch."),
            "Additive" if additive else "Dot",
            "none" if additive else draw.choice(POSITIONS),
            draw.choice(("none", "lengths")) if additive else draw.choice(MASKS),
            draw.randrange(1 << 30),
        )
        pairs = call.batch * call.heads * call.queries * call.keys
        fits = pairs * (call.head_dim if additive else 1) <= (ELEMENTS if additive else PAIRS)[device]
        tokens = call.batch * (call.heads * call.queries + 2 * call.kv_heads * call.keys) * call.head_dim
        if fits and tokens <= DENSE // 4 and (call.queries > 1 or call.mask not in ("longformer", "prefix")):
            return call


@dataclass
class Arguments:
    """The tensors and parts of a call, and its mask and bias as tensors for the alternatives."""

    call: SurveyCall
    q: Tensor
    k: Tensor
    v: Tensor
    parts: dict[str, Any]
    mask: Mask | None
    leaves: list[Tensor]
    dense: Tensor | None = field(default=None)


def make_arguments(call: SurveyCall, device: str) -> Arguments:
    """The arguments of a call, from its seed."""
    generator = torch.Generator(device).manual_seed(call.seed)
    dtype = getattr(torch, call.dtype)

    def normal(*size: int) -> Tensor:
        x = torch.randn(size, generator=generator, device=device, dtype=dtype)
        return x.requires_grad_(call.trains)

    q = normal(call.batch, call.heads, call.queries, call.head_dim)
    k, v = (normal(call.batch, call.kv_heads, call.keys, call.head_dim) for _ in range(2))
    parts: dict[str, Any] = {}
    leaves = [q, k, v]
    if call.score == "Additive":
        weight = normal(call.heads, call.head_dim)
        parts["score"], leaves = rg.Additive(weight), [*leaves, weight]
    if call.position == "Alibi":
        parts["position"] = rg.Alibi()
    elif call.position == "T5Bias":
        table = normal(call.heads, 32)
        parts["position"], leaves = rg.T5Bias(table), [*leaves, table]
    elif call.position == "Bias":
        table = normal(call.heads, 257)
        parts["position"], leaves = rg.Bias(table, zero=128), [*leaves, table]
    mask = make_mask(call, generator, device)
    parts |= {"mask": mask} if mask is not None else {}
    return Arguments(call, q, k, v, parts, mask, leaves)


def make_mask(call: SurveyCall, generator: torch.Generator, device: str) -> Mask | None:
    width = max(call.keys // 8, 1)
    if call.mask == "causal":
        return rg.Causal()
    if call.mask == "window":
        return rg.Window(width, width)
    if call.mask == "causal window":
        return rg.Causal() & rg.Window(width)
    if call.mask == "lengths":
        low = call.keys // 2 + 1
        return rg.Lengths(torch.randint(low, call.keys + 1, (call.batch,), generator=generator, device=device))
    if call.mask == "documents":
        ids = torch.rand(call.batch, call.keys, generator=generator, device=device)
        return rg.Documents(ids.mul(8 * call.keys / 1000 + 2).long().sort(1).values)
    if call.mask == "prefix":
        return PromptMask(width)
    return rg.longformer(width, 1) if call.mask == "longformer" else None


def run_ours(a: Arguments) -> Tensor:
    return rg.attend(a.q, a.k, a.v, **a.parts)


Alternative = tuple[str, Callable[[], Tensor]]


class CompiledFunctions(dict[str, Callable[..., Tensor]]):
    """The functions that are compiled for one call, by name: made again, its alternatives find them."""

    def of(self, name: str, function: Callable[..., Any]) -> Callable[..., Tensor]:
        """The function, compiled for the sizes of the call alone."""
        if name not in self:

            def run(*args: Any, **kwargs: Any) -> Any:
                return function(*args, **kwargs)

            # torch compiles a function for a few sizes and then no more; each call has a function of its own
            run.__code__ = run.__code__.replace(co_name=f"run_{next(NUMBERS)}")
            self[name] = torch.compile(run, dynamic=False)
        return self[name]


NUMBERS = itertools.count()


def alternatives(a: Arguments, device: str, compiled: CompiledFunctions | None) -> Iterator[Alternative]:
    """What a user would write instead, by name. Masks and fixed biases are made beforehand and not timed."""
    if a.call.score == "Dot":
        yield from fused_alternatives(a, device, compiled)
    call, group = a.call, a.call.heads // a.call.kv_heads
    pairs = call.batch * call.heads * call.queries * call.keys
    if pairs * (call.head_dim if call.score == "Additive" else 1) > DENSE // 4:
        return
    if call.score == "Additive":
        weight = a.parts["score"].weight
        allowed = None if a.mask is None else a.mask.dense(call.queries, call.keys)
        formula: Callable[..., Tensor] = additive_formula
        run = lambda f: lambda: f(a.q, a.k, a.v, weight, allowed, group)  # noqa: E731
    else:
        bias, formula = dense_bias(a), dot_formula
        run = lambda f: lambda: f(a.q, a.k, a.v, None if bias is None else bias(), group)  # noqa: E731
    yield "formula", run(formula)
    if compiled is not None and call.score == "Additive":
        yield "formula, compiled", run(compiled.of("formula", formula))


def fused_alternatives(a: Arguments, device: str, compiled: CompiledFunctions | None) -> Iterator[Alternative]:
    """Those of dot products that torch's fused kernels compute."""
    call, group = a.call, a.call.heads // a.call.kv_heads
    square = call.queries == call.keys
    if call.position == "none" and (call.mask == "none" or (call.mask == "causal" and (square or call.queries == 1))):
        causal = call.mask == "causal" and square
        yield "SDPA", lambda: scaled_dot_product_attention(a.q, a.k, a.v, is_causal=causal, enable_gqa=group > 1)
        return
    if call.mask == "causal window" and call.queries == 1 and call.position == "none":
        width = max(call.keys // 8, 1) + 1
        yield (
            "SDPA on the slice",
            lambda: scaled_dot_product_attention(a.q, a.k[:, :, -width:], a.v[:, :, -width:], enable_gqa=group > 1),
        )
    if (bias := dense_bias(a)) is not None:
        yield (
            "SDPA, mask tensor",
            lambda: scaled_dot_product_attention(a.q, a.k, a.v, attn_mask=bias(), enable_gqa=group > 1),
        )
        if group > 1:
            yield (
                "SDPA, mask tensor, heads repeated",
                lambda: scaled_dot_product_attention(
                    a.q, a.k.repeat_interleave(group, 1), a.v.repeat_interleave(group, 1), attn_mask=bias()
                ),
            )
    large = call.batch * call.heads * call.queries * call.keys >= FLEX_PAIRS
    if device == "cuda" and compiled is not None and large and min(call.queries, call.keys) >= FLEX_TOKENS:
        yield "FlexAttention", make_flex(a, compiled)


def additive_formula(q: Tensor, k: Tensor, v: Tensor, weight: Tensor, allowed: Tensor | None, group: int) -> Tensor:
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (torch.tanh(q[:, :, :, None] + k[:, :, None]) * weight[:, None, None]).sum(-1)
    scores = scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)
    return scores.softmax(-1) @ v


def dot_formula(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, group: int) -> Tensor:
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (q * q.shape[-1] ** -0.5) @ k.mT
    if bias is not None:
        scores = scores.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else scores + bias
    return scores.softmax(-1) @ v


def dense_bias(a: Arguments) -> Callable[[], Tensor] | None:
    """Mask and bias as one tensor, as SDPA takes them; None where there is neither, or it would be too large.

    A table that is learned is looked up at each call, by an embedding; all else is made once.
    """
    call = a.call
    if call.mask == call.position == "none":
        return None
    by_batch = call.batch if call.mask in ("lengths", "documents") else 1
    by_head = call.heads if call.position != "none" else 1
    if by_batch * by_head * call.queries * call.keys > DENSE:
        return None
    with torch.no_grad():
        made = make_call(a.q, a.k, a.v, **a.parts)
        i, j = made.grid.indices()
        allowed = made.mask.permits(i, j, made.grid)
        if call.position == "none":
            return lambda: allowed
        if call.position == "Alibi" or not call.trains:
            bias = made.position.score_bias(made.q, made.k, 1.0, i - j).to(a.q.dtype)  # type: ignore[union-attr]
            bias = bias.expand(1, -1, -1, -1).masked_fill(~allowed, -torch.inf)
            return lambda: bias
        entries = table_entries(call, i - j)
        dead = None if call.mask == "none" else ~allowed
    table = a.parts["position"].table

    def look_up() -> Tensor:
        bias = embedding(entries, table.mT).permute(2, 0, 1)[None]
        return bias if dead is None else bias.masked_fill(dead, -torch.inf)

    return look_up


def table_entries(call: SurveyCall, distance: Tensor) -> Tensor:
    """The entry of the call's table for each distance i − j."""
    if call.position == "T5Bias":
        return t5_bucket(-distance, 32, True, 128)
    return (distance + 128).clamp(0, 256)


def make_flex(a: Arguments, compiled: CompiledFunctions) -> Callable[[], Tensor]:
    """FlexAttention with the mask as a block mask and the bias as a score function."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    call, offset, mask = a.call, a.call.keys - a.call.queries, a.mask
    block = None
    if mask is not None:
        function, batch = mask_function(a, mask, offset), call.batch if mask.tensors() else None
        block = create_block_mask(function, batch, None, call.queries, call.keys, "cuda")
    score = None
    if call.position == "Alibi":
        slopes = a.parts["position"].head_slopes(a.q).float()
        score = lambda s, b, h, i, j: s - slopes[h] * (i + offset - j).abs()  # noqa: E731
    elif call.position != "none":
        table, zero = a.parts["position"].table, call.queries
        entries = table_entries(call, torch.arange(-zero, call.keys + 1, device="cuda"))
        score = lambda s, b, h, i, j: s + table[h, entries[i + offset - j + zero]]  # noqa: E731
    flex = compiled.of("FlexAttention", flex_attention)
    grouped = call.heads != call.kv_heads
    return lambda: flex(a.q, a.k, a.v, score_mod=score, block_mask=block, enable_gqa=grouped)


def mask_function(a: Arguments, mask: Mask, offset: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The mask in FlexAttention's form."""
    if isinstance(mask, rg.Lengths):
        lengths = mask.keys
        return lambda b, h, i, j: j < lengths[b]
    if isinstance(mask, rg.Documents):
        ids = mask.ids
        return lambda b, h, i, j: ids[b, i + offset] == ids[b, j]
    width = max(a.call.keys // 8, 1)
    return {
        "causal": lambda b, h, i, j: j <= i + offset,
        "window": lambda b, h, i, j: (i + offset - j <= width) & (j - i - offset <= width),
        "causal window": lambda b, h, i, j: (j <= i + offset) & (i + offset - j <= width),
        "prefix": lambda b, h, i, j: (j <= i + offset) | (j < width),
        "longformer": lambda b, h, i, j: ((i + offset - j).abs() <= width) | (j < 1) | (i + offset < 1),
    }[a.call.mask]


@dataclass(frozen=True)
class SurveyRow:
    """A call with its times in seconds, ours and every alternative's that gave the same result.

    `left_out` has the reasons of the others.
    """

    call: SurveyCall
    backend: str
    ours: float
    others: dict[str, float]
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return min(self.others.values()) / self.ours if self.others else math.nan

    @property
    def fastest(self) -> str:
        return min(self.others, key=lambda name: self.others[name]) if self.others else "nothing"

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "SurveyRow":
        """The row that `Survey.as_dict` recorded."""
        fields = {name: record[name] for name in ("backend", "ours", "others", "left_out")}
        return cls(SurveyCall(**record["call"]), **fields)


def make_step(function: Callable[[], Tensor], a: Arguments, grad: Tensor) -> Callable[[], list[Tensor | None]]:
    """A call that gives the output, and where the call trains the gradients of all its tensors."""

    def step() -> list[Tensor | None]:
        if not a.call.trains:
            with torch.no_grad():
                return [function()]
        output = function()
        return [output, *torch.autograd.grad(output, a.leaves, grad, allow_unused=True)]

    return step


class Prepared:
    """A call whose alternatives are compiled and compared, ready to be timed."""

    def __init__(self, call: SurveyCall, device: str, compiled: CompiledFunctions | None):
        self.call, self.device, self.compiled = call, device, compiled
        self.names: set[str] = set()  # of the alternatives with our result
        self.left_out: dict[str, str] = {}
        self.made: Arguments | None = None
        self.steps: dict[str, Callable[[], list[Tensor | None]]] = {}

    def make_steps(self) -> Iterator[tuple[str, Callable[[], list[Tensor | None]]]]:
        """The call and then its alternatives, up to the first that cannot be made."""
        a = self.made = make_arguments(self.call, self.device)
        grad = torch.randn_like(a.q[..., : a.v.shape[-1]])
        yield "ours", make_step(lambda: run_ours(a), a, grad)
        try:
            for name, function in alternatives(a, self.device, self.compiled):
                yield name, make_step(function, a, grad)
        except (RuntimeError, NotImplementedError) as error:
            self.left_out["others"] = explain(error)

    @property
    def bytes(self) -> int:
        """The size of the call's tensors and of their gradients."""
        leaves = [] if self.made is None else self.made.leaves
        return sum(2 * x.numel() * x.element_size() for x in leaves)

    def release(self) -> None:
        """Drop the tensors; they are made again from the seed."""
        self.made, self.steps = None, {}


def prepare_call(call: SurveyCall, device: str, compiled: bool) -> Prepared:
    """Compile a call's alternatives and compare their results with ours."""
    prepared = Prepared(call, device, CompiledFunctions() if compiled else None)
    expected: list[Tensor | None] = []
    for name, step in prepared.make_steps():
        if name == "ours":
            expected, prepared.steps[name] = step(), step
            continue
        try:
            difference = compare(step(), expected)
        except (RuntimeError, NotImplementedError) as error:  # out of memory, or a kernel that does not take the call
            prepared.left_out[name] = explain(error)
            continue
        if difference <= TOLERANCE[getattr(torch, call.dtype)]:
            prepared.steps[name] = step
            prepared.names.add(name)
        else:
            prepared.left_out[name] = f"another result, by {difference:.1e}"
    return prepared


def time_prepared(prepared: Prepared, device: str, budget: float) -> SurveyRow:
    """Time a call and its alternatives in turn."""
    steps = prepared.steps or {
        name: step for name, step in prepared.make_steps() if name == "ours" or name in prepared.names
    }
    times, a = turns(dict(steps), device, budget), prepared.made
    if a is None:
        raise ValueError("A call without tensors cannot be timed.")
    with torch.set_grad_enabled(prepared.call.trains):
        backend = rg.plan(a.q, a.k, a.v, **a.parts).backend
    return SurveyRow(prepared.call, backend, times.pop("ours"), times, prepared.left_out)


def survey_call(call: SurveyCall, device: str, compiled: bool, budget: float) -> SurveyRow:
    """Compare the results of a call and its alternatives, then time them in turn."""
    return time_prepared(prepare_call(call, device, compiled), device, budget)


def explain(error: BaseException) -> str:
    """An error in a line."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:200]


def compare(results: list[Tensor | None], expected: list[Tensor | None]) -> float:
    """The largest relative error of a result; infinite where one is missing, or not a number."""
    worst = 0.0
    for x, y in zip(results, expected, strict=True):
        if (x is None) != (y is None):
            return math.inf
        error = 0.0 if x is None or y is None else relative_error(x.detach(), y.detach())
        worst = max(worst, error if error == error else math.inf)
    return worst


def turns(calls: dict[str, Call], device: str, budget: float) -> dict[str, float]:
    """Median seconds of each call, host or device, whichever is slower; the calls take turns.

    Alternatives that a first measurement finds several times slower than the fastest are timed no further.
    """
    for call in calls.values():
        call()
    seconds = {name: [time_calls(call, 3, device)] for name, call in calls.items()}
    others = [times[0] for name, times in seconds.items() if name != "ours"]
    chosen = [name for name in calls if name == "ours" or seconds[name][0] <= SLOW * min(others)]
    counts = {name: max(1, min(50, int(budget / 5 / max(seconds[name][0], 1e-6)))) for name in chosen}
    for name in chosen:
        seconds[name].clear()
    for _ in range(5):
        for name in chosen:
            seconds[name].append(time_calls(calls[name], counts[name], device))
    return {name: median(values) for name, values in seconds.items()}


def time_calls(call: Call, count: int, device: str) -> float:
    """Mean seconds of `count` calls in a row; of one thread of a CPU those that it had the processor."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    clock = process_time if device == "cpu" and torch.get_num_threads() == 1 else perf_counter
    wait()
    start = clock()
    for _ in range(count):
        call()
    wait()
    return (clock() - start) / count


@dataclass
class Survey:
    """The rows of a survey, with what they were measured with."""

    device: str
    seed: int
    calls: int
    rows: list[SurveyRow] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def done(self) -> int:
        return len(self.rows) + len(self.failed)

    def ratios(self) -> list[float]:
        return sorted(row.ratio for row in self.rows if row.others)

    def quantile(self, share: float) -> float:
        ratios = self.ratios()
        return ratios[min(int(share * len(ratios)), len(ratios) - 1)] if ratios else math.nan

    def as_dict(self) -> dict[str, object]:
        threads = "" if torch.cuda.is_available() else f" --threads {torch.get_num_threads()}"
        return {
            "device": self.device,
            "seed": self.seed,
            "versions": machine.versions(),
            "date": datetime.now(UTC).date().isoformat(),
            "command": f"regard bench --survey --calls {self.calls} --seed {self.seed}{threads}",
            "threads": torch.get_num_threads(),
            "quantiles": {name: round(self.quantile(x), 3) for name, x in QUANTILES.items()},
            "drawn": self.calls,
            "failed": self.failed,
            "rows": [asdict(row) | {"ratio": round(row.ratio, 3), "fastest": row.fastest} for row in self.rows],
        }

    def __str__(self) -> str:
        count = f"{len(self.rows)} of {self.calls}" if len(self.rows) < self.calls else str(self.calls)
        lines = [f"{count} calls on {self.device}: time of the fastest alternative over ours"]
        lines += [f"  {name:>7} {self.quantile(share):6.2f}" for name, share in QUANTILES.items()]
        lines += ["", "The ten worst:"]
        compared = [row for row in self.rows if row.others]
        for row in sorted(compared, key=lambda row: row.ratio)[:10]:
            times = f"{row.ours * 1e6:,.0f} µs beside {min(row.others.values()) * 1e6:,.0f} of {row.fastest}"
            lines.append(f"  {row.ratio:5.2f}  {row.call} [{row.backend}]: {times}")
        lines += [f"Failed: {line}" for line in self.failed]
        return "\n".join(lines)


def read_rows(path: Path, seed: int) -> list[SurveyRow]:
    """The rows that a survey with that seed wrote to a file; none where it had another."""
    record = json.loads(path.read_text())
    return [SurveyRow.from_dict(row) for row in record["rows"]] if record["seed"] == seed else []


QUANTILES = {"worst": 0.0, "5 %": 0.05, "median": 0.5, "95 %": 0.95}


def run_survey(
    calls: int,
    seed: int,
    device: str,
    *,
    compiled: bool = True,
    minutes: float = math.inf,
    report: Callable[[str], None],
    save: Callable[[Survey], None] = lambda survey: None,
    measured: list[SurveyRow] | None = None,
) -> Survey:
    """Draw and measure `calls` calls, as many as the minutes allow; `save` gets the survey from time to time.

    Rows that were measured before are taken as they are.
    """
    end = perf_counter() + minutes * 60
    draw = random.Random(seed)
    name = torch.cuda.get_device_name() if device == "cuda" else machine.processor()
    survey = Survey(name, seed, calls)
    drawn = [draw_call(draw, device) for _ in range(calls)]
    before = {row.call: row for row in measured or []}
    survey.rows += [before[call] for call in drawn if call in before]
    left = [call for call in drawn if call not in before]
    for call, result in measure_calls(left, device, compiled, end, report):
        if isinstance(result, str):
            survey.failed.append(f"{call}: {result}")
            report(f"{survey.done}/{calls}  failed {call}: {result}")
        else:
            survey.rows.append(result)
            report(f"{survey.done}/{calls}  {result.ratio:5.2f}  {call} [{result.backend}; {result.fastest}]")
        if survey.done % 10 == 0:
            save(survey)
    save(survey)
    return survey


def measure_calls(
    calls: list[SurveyCall], device: str, compiled: bool, end: float, report: Callable[[str], None]
) -> Iterator[tuple[SurveyCall, SurveyRow | str]]:
    """Every call with its row, or with the reason why it has none; on a GPU in processes of their own."""
    if device == "cuda":
        from regard.bench.survey.processes import measure_in_processes

        yield from measure_in_processes(calls, device, end, report)
        return
    for call in calls:
        if perf_counter() > end:
            return
        yield call, measure_call(call, device, compiled)


def measure_call(call: SurveyCall, device: str, compiled: bool) -> SurveyRow | str:
    """The row of a call, or why there is none."""
    try:
        return survey_call(call, device, compiled, BUDGETS[device])
    except torch.OutOfMemoryError:
        return "out of memory"
    except (rg.RegardError, RuntimeError) as error:
        return explain(error)
    finally:
        torch.compiler.reset()
