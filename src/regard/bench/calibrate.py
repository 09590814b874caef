"""Measures what `attention.costs` decides by: masks as tensors, tiles and products, on the GPU of this machine."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

import regard as rg
from regard import machine
from regard.attention.costs import TILE, KernelCosts, PassCosts
from regard.attention.execution import CACHE
from regard.attention.parts.mask import NONE, PairGrid, Tiling
from regard.errors import Unsupported

SMALL = (1, 2, 128)  # batch, heads, tokens of a call that costs the host more than the GPU
LARGE = (11, 12, 2048)  # and of one that does not: as many blocks for each multiprocessor
PRODUCTS_BATCH = 2  # of the large call by products, which store every weight several times
HEAD_DIM, DIMS = 64, (16, 64, 128, 256, 512)  # of the small calls, and of the large ones
WIDEST = {"triton": 256}  # head_dim that a backend runs, where there is a bound
ROUND_SECONDS = 0.2  # of the calls that are timed together, about
WINDOW = {128: 16, 2048: 768}  # before and after, by tokens: most tiles of the large call are visited
BACKENDS = {"tensor": "sdpa", "tiles": "triton", "products": "dense"}
KINDS = [(itemsize, mode) for itemsize in (2, 4) for mode in ("forward", "training")]


def calibrate(out: Path) -> dict[str, PassCosts]:
    """Measure every kind of call, write the costs to `out` and return them."""
    if not torch.cuda.is_available():
        raise Unsupported("torch finds no CUDA device, and only the choice between kernels of a GPU is calibrated.")
    costs = {f"{itemsize} {mode}": measure_costs(itemsize, mode == "training") for itemsize, mode in KINDS}
    record = {
        "device": torch.cuda.get_device_name(),
        "versions": machine.versions(),
        "date": datetime.now(UTC).date().isoformat(),
        "command": "regard bench --calibrate",
        "costs": {kind: asdict(values, dict_factory=round_fields) for kind, values in costs.items()},
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=2) + "\n")
    return costs


def round_fields(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """A dictionary of costs with a few digits, which is all that is known of them."""
    few = lambda x: float(f"{x:.4g}")  # noqa: E731
    numbers = {name: {str(dim): few(y) for dim, y in x.items()} for name, x in fields if name == "pair"}
    return {name: few(x) if isinstance(x, float) else x for name, x in fields} | numbers


def measure_costs(itemsize: int, training: bool) -> PassCosts:
    """The costs of calls with elements of that size."""
    dtype = torch.bfloat16 if itemsize == 2 else torch.float32
    measured = {name: measure_kernel(backend, dtype, training) for name, backend in BACKENDS.items()}
    tiles = measured["tiles"].host
    lists = time_call("triton", SMALL, HEAD_DIM, dtype, training, new_mask=True) - tiles
    learned = time_call("triton", SMALL, HEAD_DIM, dtype, training, learned=True) - tiles if training else 0.0
    return PassCosts(**measured, lists=max(lists, 0.0), learned=max(learned, 0.0))


def measure_kernel(backend: str, dtype: torch.dtype, training: bool) -> KernelCosts:
    """What a call costs the host, and what a pair costs the GPU."""
    host = time_call(backend, SMALL, HEAD_DIM, dtype, training)
    batch, heads, tokens = large = (PRODUCTS_BATCH, *LARGE[1:]) if backend == "dense" else LARGE
    tiling = Tiling(PairGrid(tokens, tokens), TILE, TILE)
    visited = float((rg.Window(WINDOW[tokens], WINDOW[tokens]).tiles(tiling) != NONE).float().mean())
    pairs = batch * heads * tokens * tokens * (visited if backend == "triton" else 1.0)
    dims = [dim for dim in DIMS if dim <= WIDEST.get(backend, dim)]
    times = {dim: time_call(backend, large, dim, dtype, training, rounds=2) for dim in dims}
    return KernelCosts(host, {dim: time / pairs * 1e6 for dim, time in times.items()})


def time_call(
    backend: str,
    size: tuple[int, int, int],
    dim: int,
    dtype: torch.dtype,
    training: bool,
    new_mask: bool = False,
    learned: bool = False,
    rounds: int = 10,
) -> float:
    """µs of a call with a window, or with lengths that are new each time; or one that learns a table by distance."""
    batch, heads, tokens = size
    q, k, v = (
        torch.randn(batch, heads, tokens, dim, dtype=dtype, device="cuda", requires_grad=training) for _ in range(3)
    )
    grad, window = torch.randn_like(q), rg.Window(WINDOW[tokens], WINDOW[tokens])
    lengths = torch.full((batch,), tokens, device="cuda")
    table = torch.zeros(heads, 65, dtype=dtype, device="cuda", requires_grad=True)
    position, leaves = (rg.Bias(table, zero=32), (q, k, v, table)) if learned else (None, (q, k, v))

    def call() -> None:
        mask = rg.Lengths(lengths.clone()) if new_mask else window
        output = rg.attend(q, k, v, mask=mask, position=position, backend=backend)
        if training:
            torch.autograd.grad(output, leaves, grad)

    mode: AbstractContextManager[object] = nullcontext() if training else torch.no_grad()
    with mode:
        microseconds = time_loop(call, rounds)
    CACHE.clear()
    return microseconds


def time_loop(call: Callable[[], None], rounds: int, calls: int = 20) -> float:
    """The least mean of a few rounds, in µs: host or GPU, whichever is slower."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    start = perf_counter()
    call()
    torch.cuda.synchronize()
    calls = min(calls, max(int(ROUND_SECONDS / (perf_counter() - start)), 1))
    best = float("inf")
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        best = min(best, (perf_counter() - start) / calls)
    return best * 1e6


def format_costs(costs: dict[str, PassCosts]) -> str:
    """The costs as lines of text."""
    lines = [f"{'bytes, pass, kernels':<24}{'host, µs':>10}" + "".join(f"{f'D{dim}, ps':>10}" for dim in DIMS)]
    for kind, c in costs.items():
        for name, kernel in (("tensor", c.tensor), ("tiles", c.tiles), ("products", c.products)):
            pairs = "".join(f"{kernel.pair[dim]:>10.2f}" if dim in kernel.pair else f"{'–':>10}" for dim in DIMS)
            lines.append(f"{kind + ', ' + name:<24}{kernel.host:>10.0f}{pairs}")
        lines.append(f"{kind + ', lists'} {c.lists:.0f} µs, a learned table {c.learned:.0f} µs")
    return "\n".join(lines)
