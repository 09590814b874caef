"""Random calls as people make them, each beside the best of what torch offers for the same result.

A call is drawn from how attention is used: training, prefill and decoding, batches of sentences and long documents,
every score, position and mask. The alternatives are what a user would write instead: SDPA, plain or with mask and bias
as a tensor, FlexAttention compiled (on a GPU), and the formula itself, eager and compiled. Results are compared before
anything is timed. The ratio of a call is the time of the fastest alternative over ours.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import regard as rg
from regard import machine
from regard.attention.call import make_call
from regard.attention.parts.mask import Mask
from regard.bench.measure import Call, relative_error

PAIRS = {"cuda": 1 << 30, "cpu": 1 << 25}  # of a call over all heads, at most
ELEMENTS = {"cuda": 1 << 28, "cpu": 1 << 24}  # pairs × head_dim of additive scores, at most
TOKENS = {"cuda": (16, 65_536), "cpu": (16, 2_048)}
BATCHES = {"cuda": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512), "cpu": (1, 2, 4, 8, 16)}
DTYPES = {"cuda": (torch.bfloat16, torch.bfloat16, torch.float16, torch.float32), "cpu": (torch.float32,)}
HEAD_DIMS = (16, 32, 64, 64, 64, 80, 96, 128, 128, 256, 512)
MASKS = ("none", "none", "causal", "causal", "window", "causal window", "lengths", "documents", "prefix", "longformer")
POSITIONS = ("none",) * 6 + ("Alibi", "T5Bias", "Bias")
TOLERANCE = {torch.bfloat16: 3e-2, torch.float16: 1e-2, torch.float32: 1e-3}
FLEX_TOKENS = 128  # its blocks; shorter calls are padded to them by nobody
DENSE = 1 << 30  # elements of a mask or score tensor, at most


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
    generator = torch.Generator().manual_seed(call.seed)
    dtype = getattr(torch, call.dtype)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).to(device, dtype).requires_grad_(call.trains)

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
        lengths = torch.randint(call.keys // 2 + 1, call.keys + 1, (call.batch,), generator=generator)
        return rg.Lengths(lengths.to(device))
    if call.mask == "documents":
        ids = torch.rand(call.batch, call.keys, generator=generator).mul(8 * call.keys / 1000 + 2).long().sort(1).values
        return rg.Documents(ids.to(device))
    if call.mask == "prefix":
        return PromptMask(width)
    return rg.longformer(width, 1) if call.mask == "longformer" else None


def run_ours(a: Arguments) -> Tensor:
    return rg.attend(a.q, a.k, a.v, **a.parts)


def alternatives(a: Arguments, device: str, compiled: bool) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """What a user would write instead, by name. Masks and biases are made beforehand and not timed.

    Only a bias that is being learned is made in each call, which gives its table a gradient as ours does.
    """
    call = a.call
    pairs = call.batch * call.heads * call.queries * call.keys
    if call.score == "Dot":
        grouped = call.heads != call.kv_heads
        square = call.queries == call.keys
        plain = call.mask == "none" or (call.mask == "causal" and (square or call.queries == 1))
        if plain and call.position == "none":
            causal = call.mask == "causal" and square
            yield "SDPA", lambda: scaled_dot_product_attention(a.q, a.k, a.v, is_causal=causal, enable_gqa=grouped)
            return
        if call.mask == "causal window" and call.queries == 1 and call.position == "none":
            width = max(call.keys // 8, 1) + 1
            yield (
                "SDPA on the slice",
                lambda: scaled_dot_product_attention(a.q, a.k[:, :, -width:], a.v[:, :, -width:], enable_gqa=grouped),
            )
        if (dense := dense_mask(a)) is not None:
            yield (
                "SDPA, mask tensor",
                lambda: scaled_dot_product_attention(a.q, a.k, a.v, attn_mask=dense(), enable_gqa=grouped),
            )
        if device == "cuda" and compiled and min(call.queries, call.keys) >= FLEX_TOKENS and call.position != "T5Bias":
            yield "FlexAttention", make_flex(a)
    size = pairs * (call.head_dim if call.score == "Additive" else 1)
    if size <= DENSE // 4:
        yield "formula", lambda: rg.attend(a.q, a.k, a.v, **a.parts, backend="reference")
        if compiled and device == "cuda" and call.score == "Additive":
            formula = torch.compile(additive_formula)
            lengths = None if a.mask is None else a.mask.dense(call.queries, call.keys)
            weight = a.parts["score"].weight
            yield "formula, compiled", lambda: formula(a.q, a.k, a.v, weight, lengths, call.heads // call.kv_heads)


def additive_formula(q: Tensor, k: Tensor, v: Tensor, weight: Tensor, allowed: Tensor | None, group: int) -> Tensor:
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (torch.tanh(q[:, :, :, None] + k[:, :, None]) * weight[:, None, None]).sum(-1)
    scores = scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)
    return scores.softmax(-1) @ v


def dense_mask(a: Arguments) -> Callable[[], Tensor] | None:
    """Makes mask and bias as one tensor, as SDPA takes them; None where it would be too large."""
    call = a.call
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

    def make() -> Tensor:
        bias = made.position.score_bias(made.q, made.k, 1.0, i - j).to(a.q.dtype)  # type: ignore[union-attr]
        return bias.expand(1, -1, -1, -1).masked_fill(~allowed, -torch.inf)

    if call.trains and call.position in ("T5Bias", "Bias"):
        return make
    with torch.no_grad():
        bias = make()
    return lambda: bias


def make_flex(a: Arguments) -> Callable[[], Tensor]:
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
    elif call.position == "Bias":
        table, zero = a.parts["position"].table, 128
        score = lambda s, b, h, i, j: s + table[h, (i + offset - j + zero).clamp(0, 256)]  # noqa: E731
    flex = torch.compile(flex_attention, dynamic=False)
    grouped = call.heads != call.kv_heads
    return lambda: flex(a.q, a.k, a.v, score_mod=score, block_mask=block, enable_gqa=grouped)  # type: ignore[return-value]


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
    """A call with its times in seconds, ours and every alternative's that gave the same result."""

    call: SurveyCall
    backend: str
    ours: float
    others: dict[str, float]

    @property
    def ratio(self) -> float:
        return min(self.others.values()) / self.ours if self.others else math.nan

    @property
    def fastest(self) -> str:
        return min(self.others, key=lambda name: self.others[name]) if self.others else "nothing"


def survey_call(call: SurveyCall, device: str, compiled: bool, budget: float) -> SurveyRow:
    """Compare the results of a call and its alternatives, then time them in turn."""
    a = make_arguments(call, device)
    grad = torch.randn_like(a.q[..., : a.v.shape[-1]])

    def step(function: Callable[[], Tensor]) -> Call:
        def run() -> object:
            if not call.trains:
                with torch.no_grad():
                    return function()
            output = function()
            torch.autograd.grad(output, a.leaves, grad, allow_unused=True)
            return output

        return run

    ours = step(lambda: run_ours(a))
    expected = ours()
    calls: dict[str, Call] = {"ours": ours}
    for name, function in alternatives(a, device, compiled):
        try:
            result = step(function)()
        except (RuntimeError, NotImplementedError):  # out of memory, or a kernel that does not take the call
            continue
        if relative_error(result, expected) <= TOLERANCE[a.q.dtype]:  # type: ignore[arg-type]
            calls[name] = step(function)
    times = turns(calls, device, budget)
    backend = rg.plan(a.q, a.k, a.v, **a.parts).backend
    return SurveyRow(call, backend, times.pop("ours"), times)


def turns(calls: dict[str, Call], device: str, budget: float) -> dict[str, float]:
    """Median seconds of each call, host or device, whichever is slower; the calls take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    counts: dict[str, int] = {}
    for name, call in calls.items():
        call()
        first = time_calls(call, 3, device)
        counts[name] = max(1, min(50, int(budget / 5 / max(first, 1e-6))))
    for _ in range(5):
        for name, call in calls.items():
            seconds[name].append(time_calls(call, counts[name], device))
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
    rows: list[SurveyRow] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def ratios(self) -> list[float]:
        return sorted(row.ratio for row in self.rows if row.others)

    def quantile(self, share: float) -> float:
        ratios = self.ratios()
        return ratios[min(int(share * len(ratios)), len(ratios) - 1)] if ratios else math.nan

    def as_dict(self) -> dict[str, object]:
        return {
            "device": self.device,
            "versions": machine.versions(),
            "date": datetime.now(UTC).date().isoformat(),
            "command": f"regard bench --survey --calls {len(self.rows) + len(self.failed)} --seed {self.seed}",
            "threads": torch.get_num_threads(),
            "quantiles": {name: round(self.quantile(x), 3) for name, x in QUANTILES.items()},
            "failed": self.failed,
            "rows": [asdict(row) | {"ratio": round(row.ratio, 3), "fastest": row.fastest} for row in self.rows],
        }

    def __str__(self) -> str:
        lines = [f"{len(self.rows)} calls on {self.device}: time of the fastest alternative over ours"]
        lines += [f"  {name:>7} {self.quantile(share):6.2f}" for name, share in QUANTILES.items()]
        lines += ["", "The ten worst:"]
        compared = [row for row in self.rows if row.others]
        for row in sorted(compared, key=lambda row: row.ratio)[:10]:
            times = f"{row.ours * 1e6:,.0f} µs beside {min(row.others.values()) * 1e6:,.0f} of {row.fastest}"
            lines.append(f"  {row.ratio:5.2f}  {row.call} [{row.backend}]: {times}")
        lines += [f"Failed: {line}" for line in self.failed]
        return "\n".join(lines)


QUANTILES = {"worst": 0.0, "5 %": 0.05, "median": 0.5, "95 %": 0.95}


def run_survey(
    calls: int, seed: int, device: str, *, compiled: bool = True, budget: float = 0.25, report: Callable[[str], None]
) -> Survey:
    """Draw and measure `calls` calls."""
    draw = random.Random(seed)
    name = torch.cuda.get_device_name() if device == "cuda" else machine.processor()
    survey = Survey(name, seed)
    for number in range(calls):
        call = draw_call(draw, device)
        try:
            survey.rows.append(survey_call(call, device, compiled, budget))
        except rg.RegardError as error:
            survey.failed.append(f"{call}: {error}")
        except torch.OutOfMemoryError:
            survey.failed.append(f"{call}: out of memory")
        else:
            row = survey.rows[-1]
            report(f"{number + 1}/{calls}  {row.ratio:5.2f}  {call} [{row.backend}; {row.fastest}]")
        if device == "cuda":
            torch.cuda.empty_cache()
        torch.compiler.reset()
    return survey
