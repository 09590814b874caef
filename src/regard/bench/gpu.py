"""The comparisons on a GPU: which works, at which sizes, beside whom, and what counts as good."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch
from torch import Tensor

import regard as rg
from regard import machine
from regard.bench import gpu_methods as methods
from regard.bench import gpu_works as works
from regard.bench.gpu_works import At, Forward, Work
from regard.bench.measure import Call, WrongNumbers, check, gpu_memory, gpu_times, times
from regard.bench.result import Cost, Goal, Line, Result


@dataclass(frozen=True)
class Comparison:
    """One work at one size: the peers to set beside ours, each with its goal.

    `small` are the sizes at which ours is compared with the formula in float64, and those of a quick run; `tolerance`
    is for that, and `beside` for the full size, where both sides round. `noted` are costs of peers that were measured
    on an H200 but are not to be had in this run.
    """

    work: str
    make: Callable[..., Work]
    sizes: dict[str, int]
    small: dict[str, int]
    peers: dict[str, Goal] = field(default_factory=dict)
    noted: dict[str, tuple[Cost, Goal]] = field(default_factory=dict)
    dtype: torch.dtype = torch.bfloat16
    tolerance: float = 1e-2
    beside: float = 5e-2

    @property
    def name(self) -> str:
        return f"{self.work}, {shape(self.sizes)}"


class Found(NamedTuple):
    """What came of a comparison: its lines, notes on peers that were left out, and why it failed, if it did."""

    lines: tuple[Line, ...] = ()
    notes: tuple[str, ...] = ()
    failed: str | None = None
    broken: bool = False


LONG = {"batch": 1, "heads": 16, "tokens": 32768, "dim": 64}
SHORT = {"batch": 1, "heads": 2, "tokens": 1500, "dim": 64}
GRAPH, SMALL_GRAPH = {"nodes": 1_000_000, "edges": 20_000_000}, {"nodes": 300, "edges": 4000}
NOTED = "cuDNN's graph API, noted earlier"
PACKAGES = {"PyG": "torch_geometric", "transformers": "transformers"}  # that peers need, by how they begin

COMPARISONS = (
    Comparison(
        "dense causal",
        works.dense,
        {"batch": 4, "heads": 16, "tokens": 8192, "dim": 128},
        {"batch": 2, "heads": 2, "tokens": 700, "dim": 128},
        {"SDPA": Goal(0.98, 0.98, 0.98), "SDPA, cuDNN": Goal(0.98, 0.98)},
    ),
    Comparison(
        "window ±512",
        works.window,
        LONG | {"before": 512, "after": 512},
        SHORT | {"before": 130, "after": 130},
        {"FlexAttention": Goal(1.0, 1.3)},
        {NOTED: (Cost(0.47e-3), Goal())},
    ),
    Comparison(
        "window ±512 with ALiBi",
        partial(works.window, alibi=True),
        LONG | {"before": 512, "after": 512},
        SHORT | {"before": 130, "after": 130},
        {"FlexAttention": Goal(1.5, 1.4)},
    ),
    Comparison(
        "causal window of 1024 back",
        works.window,
        LONG | {"before": 1024, "after": 0},
        SHORT | {"before": 260, "after": 0},
        {"FlexAttention": Goal()},
        {NOTED: (Cost(0.45e-3, 1.58e-3), Goal(0.98, 0.98))},
    ),
    Comparison(
        "causal window of 1024 back with ALiBi",
        partial(works.window, alibi=True),
        LONG | {"before": 1024, "after": 0},
        SHORT | {"before": 260, "after": 0},
        {"FlexAttention": Goal()},
        {NOTED: (Cost(0.54e-3, 1.75e-3), Goal(0.98, 0.98))},
    ),
    Comparison(
        "Longformer layer",
        works.longformer,
        {"heads": 16, "tokens": 32768, "dim": 64, "before": 512},
        {"heads": 2, "tokens": 1024, "dim": 64, "before": 64},
        {"transformers": Goal(both=30)},
    ),
    Comparison(
        "BigBird, block 64",
        works.bigbird,
        {"heads": 16, "tokens": 16384, "dim": 64, "block": 64},
        {"heads": 2, "tokens": 1024, "dim": 64, "block": 64},
        {"FlexAttention": Goal(10, 5), "FlexAttention, blocks of 64": Goal(10, 5)},
    ),
    Comparison(
        "learned bias by distance",
        works.learned_bias,
        {"batch": 2, "heads": 16, "tokens": 4096, "dim": 64},
        {"batch": 2, "heads": 2, "tokens": 500, "dim": 64},
        {"FlexAttention": Goal(3, 2.5)},
    ),
    Comparison(
        "Transformer-XL",
        works.transformer_xl,
        {"batch": 2, "heads": 16, "tokens": 4096, "memory": 4096, "dim": 64},
        {"batch": 2, "heads": 2, "tokens": 300, "memory": 230, "dim": 64},
        {"compiled": Goal(5, 3, 20), "eager": Goal()},
    ),
    Comparison(
        "additive (tanh)",
        works.additive,
        {"batch": 8, "heads": 1, "tokens": 2048, "dim": 128},
        {"batch": 2, "heads": 1, "tokens": 150, "dim": 128},
        {"compiled": Goal(5, 10), "eager": Goal()},
    ),
    Comparison(
        "additive (tanh)",
        works.additive,
        {"batch": 1, "heads": 8, "tokens": 8192, "dim": 64},
        {"batch": 1, "heads": 2, "tokens": 150, "dim": 64},
        {"compiled": Goal(5, 10)},
    ),
    Comparison(
        "sentences of 32–1024 tokens",
        works.sentences,
        {"batch": 64, "heads": 16, "tokens": 1024, "dim": 64, "shortest": 32},
        {"batch": 5, "heads": 2, "tokens": 300, "dim": 64, "shortest": 32},
        {"FlexAttention": Goal(1.3, 1.3)},
    ),
    Comparison(
        "GAT layer, 8 × 16",
        works.gat_layer,
        GRAPH,
        SMALL_GRAPH,
        {"PyG, compiled": Goal(5, 3, 3), "PyG": Goal()},
        dtype=torch.float32,
        tolerance=1e-4,
        # Over millions of edges PyG's own gradient of att_dst, a sum that nearly cancels, is more than 1e-4 off.
        beside=5e-3,
    ),
    Comparison(
        "GATv2 layer, 8 × 16",
        works.gatv2_layer,
        GRAPH,
        SMALL_GRAPH,
        {"PyG, compiled": Goal(5, 15, 2), "PyG": Goal()},
        dtype=torch.float32,
        tolerance=1e-4,
        beside=5e-3,
    ),
    Comparison(
        "look: entropy, top 8, received, map 256 × 256",
        works.look,
        {"heads": 16, "tokens": 16384, "dim": 64, "cells": 256},
        {"heads": 2, "tokens": 1024, "dim": 64, "cells": 16},
        {"eager": Goal(15)},
    ),
    Comparison(
        "look: entropy, top 8, received, map 256 × 256",
        works.look,
        {"heads": 16, "tokens": 131072, "dim": 64, "cells": 256},
        {"heads": 2, "tokens": 1024, "dim": 64, "cells": 16},
    ),
    Comparison(
        "decoding one token",
        works.decode,
        {"batch": 16, "heads": 32, "kv_heads": 8, "tokens": 32768, "dim": 128},
        {"batch": 2, "heads": 4, "kv_heads": 2, "tokens": 1000, "dim": 128},
        {"SDPA": Goal(0.98), "SDPA, cuDNN": Goal(0.98)},
    ),
    *[
        Comparison(
            name,
            make,
            LONG | {size: 256},
            {"batch": 1, "heads": 2, "tokens": 1024, "dim": 64, size: 64},
            {"compiled": Goal(1, 1, 1), "compiled, in float32": Goal(1, 1, 1)},
            tolerance=tolerance,
        )
        for name, make, size, tolerance in (
            ("Linformer", methods.linformer, "projected", 1e-2),
            # Its inverse magnifies what is rounded: in bfloat16 the formula's own gradients of q and k are 2e-2 off.
            ("Nyström", methods.nystrom, "landmarks", 2e-2),
            ("Performer", methods.performer, "features", 1e-2),
        )
    ],
)


def run(
    quick: bool = False,
    only: str = "",
    budget: float = 0.3,
    tell: Callable[[str], None] = lambda _: None,
    save: Callable[[Result], None] = lambda _: None,
    patience: float = 180.0,
) -> Result:
    """The comparisons whose name contains `only`, each measured in another process, which outlives it unless broken.

    `tell` hears of each as it begins, and `save` gets what there is after each. A comparison that fails, computes
    something wrong or takes longer than `patience` seconds is reported, and the others go on. Raises `RegardError`
    when there is none of that name.
    """
    chosen = [n for n, comparison in enumerate(COMPARISONS) if only.lower() in comparison.name.lower()]
    if not chosen:
        names = "; ".join(comparison.name for comparison in COMPARISONS)
        raise rg.RegardError(f"No comparison on a GPU has {only!r} in its name. They are: {names}.")
    every: list[Found] = []
    worker = Worker()
    try:
        for number in chosen:
            tell(COMPARISONS[number].name)
            every.append(worker.ask(number, quick, budget, patience))
            for line in report(every[-1]):
                tell(f"  {line}")
            save(gather(every, quick))
    finally:
        worker.stop()
    return gather(every, quick)


def report(found: Found) -> list[str]:
    """What came of a comparison, in lines."""
    lines = ["  ".join(filter(None, line.cells()[2:])) for line in found.lines]
    return [*lines, *found.notes, *([found.failed] if found.failed else [])]


def gather(every: Sequence[Found], quick: bool) -> Result:
    """The run so far."""
    lines = tuple(line for found in every for line in found.lines)
    notes = tuple(note for found in every for note in found.notes)
    failed = tuple(found.failed for found in every if found.failed)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Result(device_name(), now, torch.get_num_threads(), quick, machine.versions(), lines, notes, failed)


def device_name() -> str:
    """The GPU's name as its driver tells it."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"


def file_name(device: str) -> str:
    """The name of the file that a device's results are kept in.

    >>> file_name("NVIDIA H200"), file_name("NVIDIA A100-SXM4-80GB")
    ('h200.json', 'a100-sxm4-80gb.json')
    """
    return "-".join(device.lower().replace("nvidia", "").split()) + ".json"


class Worker:
    """A process that measures one comparison after another; a new one takes over from one that broke."""

    def __init__(self) -> None:
        self.process: Any = None
        self.pipe: Any = None

    def ask(self, number: int, quick: bool, budget: float, patience: float) -> Found:
        """What came of a comparison, in at most so many seconds."""
        if self.process is None:
            context = get_context("spawn")
            self.pipe, theirs = context.Pipe()
            self.process = context.Process(target=serve, args=(theirs,))
            self.process.start()
            theirs.close()
        name = COMPARISONS[number].name
        try:
            self.pipe.send((number, quick, budget))
            if not self.pipe.poll(patience):
                self.stop(kindly=False)
                return Found(failed=f"{name}: took longer than {patience:g} s and was stopped")
            found = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.stop(kindly=False)
            return Found(failed=f"{name}: the process that measured it died")
        if found.broken:
            self.stop()
        return found

    def stop(self, kindly: bool = True) -> None:
        """Ends the process, after what it is doing if `kindly`."""
        if self.process is None:
            return
        self.pipe.close()
        self.process.join(10 if kindly else 0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process = self.pipe = None


def serve(pipe: Any) -> None:
    """Measures what is asked for until the other end is closed."""
    wake()
    while True:
        try:
            number, quick, budget = pipe.recv()
        except (EOFError, ConnectionError):
            return
        found = attempt(COMPARISONS[number], quick, budget)
        pipe.send(found)
        if found.broken:
            return


def wake() -> None:
    """Starts what a process starts once, the device and Triton's driver, which is no part of a first call's time."""
    if torch.cuda.is_available():
        x = torch.ones(1, 1, 16, 16, dtype=torch.bfloat16, device="cuda")
        rg.attend(x, x, x, mask=rg.Window(4, 4), backend="triton")
        torch.cuda.synchronize()


def attempt(comparison: Comparison, quick: bool, budget: float, device: str = "cuda") -> Found:
    """What came of a comparison, whatever it was."""
    notes: list[str] = []
    try:
        lines = tuple(compare(comparison, quick, budget, device, notes))
        return Found(lines, tuple(notes))
    except WrongNumbers as error:
        return Found((), tuple(notes), f"Wrong numbers: {error}")
    except Exception as error:
        return Found((), tuple(notes), f"{comparison.name}: {brief(error)}", broken=not healthy(device))
    finally:
        clean(device)


def healthy(device: str) -> bool:
    """Whether the device still answers; after an illegal access no call to it in this process does."""
    try:
        torch.ones(1, device=device).sum().item()
    except Exception:
        return False
    return True


def clean(device: str) -> None:
    """Forgets compiled functions and gives memory back."""
    torch.compiler.reset()
    gc.collect()
    if device == "cuda" and healthy(device):
        torch.cuda.empty_cache()


def brief(error: BaseException) -> str:
    """The error's class and how its text begins."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def compare(comparison: Comparison, quick: bool, budget: float, device: str, notes: list[str]) -> Iterator[Line]:
    """The lines of a comparison, ours once checked small against float64 and then beside each peer.

    What keeps a peer from being measured is added to `notes`. Raises `WrongNumbers`.
    """
    dtype = comparison.dtype if device == "cuda" else torch.float32
    sizes = comparison.small if quick else comparison.sizes
    work = comparison.make(At(device, dtype, dtype), **sizes)
    ours = work.ways["regard"]()
    first = waited(partial(passes, work, ours), device)
    verify(comparison, device, dtype)
    ready = {"regard": ours}
    for peer in comparison.peers:
        if (forward := prepare(comparison, work, peer, notes)) is not None:
            ready[peer] = forward
    costs = measure(comparison, work, ready, budget, device, notes)
    limited = device == "cuda" and "H200" in device_name() and not quick
    line = partial(Line, comparison.work, shape(sizes), costs.pop("regard"), work.need, first, limited=limited)
    # A goal is for the full size.
    yield from (line(peer, cost, Goal() if quick else comparison.peers[peer]) for peer, cost in costs.items())
    if limited:
        yield from (line(peer, cost, goal) for peer, (cost, goal) in comparison.noted.items())
    if not costs:
        yield line()


def waited(call: Call, device: str) -> float:
    """Seconds until a call has done its work on the device."""
    start = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def verify(comparison: Comparison, device: str, dtype: torch.dtype) -> None:
    """Raises `WrongNumbers` unless ours, small, agrees with the formula in float64."""
    name = f"{comparison.work}, {shape(comparison.small)}"
    work = comparison.make(At(device, dtype, dtype), **comparison.small)
    exact = comparison.make(At(device, torch.float64, dtype), **comparison.small)
    wanted = passes(exact, exact.ways["eager"]())
    check(name, passes(work, work.ways["regard"]()), wanted, comparison.tolerance)


def passes(work: Work, forward: Forward) -> tuple[Tensor, ...]:
    """The output and, where there are inputs, the gradient that fixed random numbers over it send to each."""
    if not work.inputs:
        with torch.no_grad():
            return several(forward())
    output = forward()
    if not isinstance(output, Tensor):
        raise TypeError(f"A work with gradients gave {type(output).__name__}.")
    return output.detach(), *torch.autograd.grad(output, work.inputs, upstream(output))


def several(output: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The outputs as a tuple."""
    return (output,) if isinstance(output, Tensor) else output


def upstream(output: Tensor) -> Tensor:
    """Fixed random numbers in the output's place, the same in every type."""
    generator = torch.Generator(output.device).manual_seed(9)
    numbers = torch.randn(output.shape, generator=generator, device=output.device)
    return numbers.to(torch.bfloat16).to(output.dtype)


def prepare(comparison: Comparison, work: Work, peer: str, notes: list[str]) -> Forward | None:
    """A peer's forward pass, or `None` and a note on why there is none."""
    missing = next(
        (module for name, module in PACKAGES.items() if peer.startswith(name) and not find_spec(module)), None
    )
    if missing:
        notes.append(f"{comparison.name}: {peer} left out, because {missing} is not installed.")
        return None
    try:
        return work.ways[peer]()
    except Exception as error:
        notes.append(f"{comparison.name}: {peer} left out: {brief(error)}")
        return None


def measure(
    comparison: Comparison, work: Work, ready: dict[str, Forward], budget: float, device: str, notes: list[str]
) -> dict[str, Cost]:
    """Each way's cost; a peer's pass that fails is left out with a note, one that computes something else raises."""
    grad = upstream(ready["regard"]()) if work.inputs else None  # type: ignore[arg-type]
    calls: dict[str, Call] = {}
    memory: dict[str, float] = {}
    wanted: tuple[Tensor, ...] = ()
    for who, forward in ready.items():
        found: tuple[Tensor, ...] = ()
        for kind, call in kinds(work, forward, grad).items():
            try:
                found += several(call())
                memory[f"{who}: {kind}"] = gpu_memory(call) if device == "cuda" else 0.0
                calls[f"{who}: {kind}"] = call
            except Exception as error:
                if who == "regard" or not healthy(device):
                    raise
                notes.append(f"{comparison.name}: {who} has no {kind} pass: {brief(error)}")
                break
        wanted = wanted or found
        check(f"{comparison.name}, beside {who}", wanted[: len(found)], found, comparison.beside)
        found = ()
        clear(device)
    wanted = ()
    clear(device)
    took = gpu_times(calls, budget) if device == "cuda" else times(calls, budget, least=1)
    return {who: cost(who, took, memory) for who in ready if f"{who}: forward" in took}


def kinds(work: Work, forward: Forward, grad: Tensor | None) -> dict[str, Callable[[], Tensor | tuple[Tensor, ...]]]:
    """The passes that are measured: forward without gradients and, where there are inputs, forward and backward."""

    def alone() -> Tensor | tuple[Tensor, ...]:
        with torch.no_grad():
            return forward()

    def both() -> tuple[Tensor, ...]:
        return torch.autograd.grad(forward(), work.inputs, grad)  # type: ignore[arg-type]

    return {"forward": alone} | ({"backward": both} if work.inputs else {})


def cost(who: str, took: dict[str, float], memory: dict[str, float]) -> Cost:
    """The times and peaks of one way."""
    forward, backward = f"{who}: forward", f"{who}: backward"
    peaks = [memory.get(kind) or None for kind in (forward, backward)]
    return Cost(took.get(forward), took.get(backward), *(peaks if backward in took else peaks[:1]))


def clear(device: str) -> None:
    """Gives back memory that nothing uses."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def shape(sizes: dict[str, int]) -> str:
    """Sizes as they are written in tables.

    >>> shape({"batch": 2, "heads": 16, "tokens": 4096, "memory": 4096, "dim": 64})
    'B2 H16 N4096+4096 D64'
    """
    if "nodes" in sizes:
        return ", ".join(f"{size:,} {name}" for name, size in sizes.items())
    letters = {"batch": "B", "heads": "H", "kv_heads": "/", "tokens": "N", "memory": "+", "dim": "D"}
    text = " ".join(f"{letters[name]}{size}" for name, size in sizes.items() if name in letters)
    return text.replace(" +", "+").replace(" /", "/")
