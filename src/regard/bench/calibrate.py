"""Measures what `attention.costs` decides by: masks as tensors beside tiles, on the GPU of this machine."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

import torch

import regard as rg
from regard import machine
from regard.attention.costs import HEAD_DIM, TILE, PassCosts, assume_costs
from regard.attention.execution import CACHE
from regard.attention.parts.mask import NONE, PairGrid, Tiling
from regard.errors import Unsupported

SMALL = (1, 2, 128)  # batch, heads, tokens of a call that costs the host more than the GPU
LARGE = (16, 12, 2048)  # and of one that does not
WINDOW = {128: 16, 2048: 768}  # before and after, by tokens: most tiles of the large call are visited
NEVER = PassCosts(1e9, 1e9, 0.0, 0.0, 0.0)  # dense is never faster
ALWAYS = PassCosts(0.0, 0.0, 1e9, 1e9, 0.0)
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
        "costs": {kind: {name: round(x, 3) for name, x in asdict(values).items()} for kind, values in costs.items()},
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=2) + "\n")
    return costs


def measure_costs(itemsize: int, training: bool) -> PassCosts:
    """The costs of calls with elements of that size."""
    dtype = torch.bfloat16 if itemsize == 2 else torch.float32
    dense_host, tiles_host = (time_call(SMALL, dtype, training, costs) for costs in (ALWAYS, NEVER))
    dense, tiles = (time_call(LARGE, dtype, training, costs) for costs in (ALWAYS, NEVER))
    batch, heads, tokens = LARGE
    pairs = batch * heads * tokens * tokens
    tiling = Tiling(PairGrid(tokens, tokens), TILE, TILE)
    share = float((rg.Window(WINDOW[tokens], WINDOW[tokens]).tiles(tiling) != NONE).float().mean())
    lists = time_call(SMALL, dtype, training, NEVER, new_mask=True) - tiles_host
    return PassCosts(dense_host, dense / pairs * 1e6, tiles_host, tiles / (pairs * share) * 1e6, max(lists, 0.0))


def time_call(
    size: tuple[int, int, int], dtype: torch.dtype, training: bool, costs: PassCosts, new_mask: bool = False
) -> float:
    """µs of a call with a window, or with lengths that are new each time, when it is planned with these costs."""
    batch, heads, tokens = size
    q, k, v = (
        torch.randn(batch, heads, tokens, HEAD_DIM, dtype=dtype, device="cuda", requires_grad=training)
        for _ in range(3)
    )
    grad, window = torch.randn_like(q), rg.Window(WINDOW[tokens], WINDOW[tokens])
    lengths = torch.full((batch,), tokens, device="cuda")

    def call() -> None:
        output = rg.attend(q, k, v, mask=rg.Lengths(lengths.clone()) if new_mask else window)
        if training:
            torch.autograd.grad(output, (q, k, v), grad)

    mode: AbstractContextManager[object] = nullcontext() if training else torch.no_grad()
    CACHE.clear()
    with mode, assume_costs({f"{itemsize} {mode}": costs for itemsize, mode in KINDS}):
        microseconds = time_loop(call)
    CACHE.clear()
    return microseconds


def time_loop(call: Callable[[], None], rounds: int = 5, calls: int = 20) -> float:
    """The least mean of a few rounds, in µs: host or GPU, whichever is slower."""
    for _ in range(5):
        call()
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
    head = f"{'bytes, pass':<14}{'tensor, µs':>12}{'ps/pair':>10}{'tiles, µs':>12}{'ps/pair':>10}{'lists, µs':>12}"
    rows = [
        f"{kind:<14}{c.dense_host:>12.0f}{c.dense_pair:>10.2f}{c.tiles_host:>12.0f}{c.tiles_pair:>10.2f}{c.lists:>12.0f}"
        for kind, c in costs.items()
    ]
    return "\n".join([head, *rows])
