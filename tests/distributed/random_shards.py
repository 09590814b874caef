"""Random sharded calls beside the same call in one process: outputs, all gradients and views, in float64.

    python tests/distributed/random_shards.py RANKS FIRST LAST

`check` is what every rank does for the tests; it writes what it found as JSON.
"""

from __future__ import annotations

import gc
import hashlib
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import regard as rg
from regard.bench.differential.oracle import (
    Case,
    Comparison,
    cancellation_sizes,
    compare_results,
    make_leaves,
    random_gradient,
    reference_errors,
    results,
    round_case,
)
from regard.bench.differential.random_calls import KINDS, RandomCalls
from regard.distributed import Layout
from regard.distributed.assignment import STRATEGIES
from regard.distributed.attention import attend as sharded_attend
from regard.distributed.attention import passes
from regard.distributed.exchange import tensor_bytes

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.processes import run_processes


def random_case(
    number: int, ranks: int, dtype: torch.dtype = torch.float64, device: str = "cpu"
) -> tuple[Case, dict[str, Any], Layout]:
    """A call, features of its edges where it has a graph, and a layout."""
    draw = RandomCalls(f"sharded {number}")
    queries = draw.rng.randint(ranks, 90)
    keys = queries if draw.chance(0.7) else draw.rng.randint(ranks, 120)
    mask = KINDS[number % len(KINDS)] if number % 2 else "any"
    case = draw.case(queries, keys, dtype, mask, small=True, others=draw.chance(0.4), places=draw.chance(0.25))
    edges = {}
    if isinstance(case.mask, rg.Edges) and draw.chance(0.7):
        case, edges = add_edge_features(draw, case)
    tile = draw.rng.choice([None, 1, 3, 4, 16])
    tile = tile if tile and min(queries, keys) > tile * (ranks - 1) else None
    mask = case.mask if case.places is None or case.mask is None else case.places.place(case.mask)
    mask = mask if mask is None else mask.to(device)
    layout = rg.shard(mask, (queries, keys), strategy=draw.rng.choice(["auto", *STRATEGIES]), tile=tile)
    return case, edges, layout


def add_edge_features(draw: RandomCalls, case: Case) -> tuple[Case, dict[str, Any]]:
    """The case with a graph whose edges are listed once, and features of them that its score and position take."""
    assert isinstance(case.mask, rg.Edges)
    mask = rg.Edges(unique_edges(draw, case.mask))
    heads, count = draw.rng.choice([1, case.q.shape[1]]), mask.edge_index.shape[1]
    turned = isinstance(case.score, rg.Cosine) or (case.position is not None and case.position.rotates)
    wanted = {"bias": (heads, count)}
    wanted |= {} if turned else {"keys": (heads, count, case.k.shape[3])}
    wanted |= {"values": (heads, count, case.v.shape[3])}
    chosen = draw.rng.sample(sorted(wanted), draw.rng.randint(1, len(wanted)))
    features = {name: draw.normal(*wanted[name]).requires_grad_() for name in sorted(chosen)}
    return replace(case, mask=mask), {"edges": rg.EdgeFeatures(**features)}


def unique_edges(draw: RandomCalls, mask: rg.Edges) -> Tensor:
    edges = mask.edge_index.unique(dim=1)
    return edges[:, torch.randperm(edges.shape[1], generator=draw.generator)]


def compare(number: int, ranks: int) -> dict[str, object]:
    """One random call, sharded twice and whole; the greatest error relative to each tensor, and what else matters."""
    case, edges, layout = random_case(number, ranks)
    first, again = (run(case, edges, layout) for _ in range(2))
    received, planned = forward_bytes(case, edges, layout)
    single = run(case, edges, None)
    if first.keys() != single.keys():
        raise AssertionError(f"{case}: {first.keys() ^ single.keys()}")
    error = max(
        float((first[name] - x).abs().max() / x.abs().max().clamp(min=1e-3)) for name, x in single.items() if x.numel()
    )
    bits = all(torch.equal(x, again[name]) for name, x in first.items())
    view_error = 0.0 if number % 3 else compare_views(layout, case, edges)
    call = f"{number}: {case}{f' · {edges}' if edges else ''} on {layout!r}"
    same = {"same bits": bits, "bytes": [received, planned]}
    return {"call": call, "error": error, "view error": view_error} | same


def forward_bytes(case: Case, edges: dict[str, Any], layout: Layout) -> tuple[int, int]:
    """Bytes that a forward pass receives on this rank, and those of the plan."""
    own = [layout.split(x, keys=n > 0) for n, x in enumerate((case.q, case.k, case.v))]
    options = case.parts() | edges | {"mask": case.mask, "places": case.places, "dropout": case.dropout}
    with counted_exchanges() as exchanges, torch.no_grad():
        rg.attend(*own, **options, layout=layout)
    plan = rg.plan(*own, **options, layout=layout)
    return sum(one.received for one in exchanges), plan.ranks[layout.rank].received  # type: ignore[attr-defined]


@contextmanager
def counted_exchanges() -> Iterator[list[passes.Exchange]]:
    """The exchanges of the passes while it is open."""
    exchanges: list[passes.Exchange] = []
    original = passes.new_exchange
    passes.new_exchange = lambda layout: exchanges.append(original(layout)) or exchanges[-1]  # type: ignore[func-returns-value]
    try:
        yield exchanges
    finally:
        passes.new_exchange = original


def run(
    case: Case, edges: dict[str, Any], layout: Layout | None, device: str = "cpu", backend: str = "auto"
) -> dict[str, Tensor]:
    """The output and all gradients by name, of the whole sequence on every rank."""
    leaves, parts = make_leaves(case, case.dtype, case.carried or case.dtype, device)
    if edges:
        copies = {name: x.detach().clone().requires_grad_() for name, x in edges["edges"].tensors().items()}
        leaves, parts = leaves | copies, parts | {"edges": rg.EdgeFeatures(**copies)}
    mask, places = move(case, device)
    options = parts | {"mask": mask, "places": places, "dropout": case.dropout}
    options["generator"] = torch.Generator().manual_seed(case.seed)
    q, k, v = (leaves[name] for name in "qkv")
    if layout is None:
        output = rg.attend(q, k, v, **options, backend="reference")
        output.backward(random_gradient(output, case.dtype, case.seed))
    else:
        own = (layout.split(x, keys=n > 0) for n, x in enumerate((q, k, v)))
        part = rg.attend(*own, **options, backend=backend, layout=layout)
        output = layout.gather(part.detach())
        part.backward(layout.split(random_gradient(output, case.dtype, case.seed).to(device)))
        for x in (q, k, v):  # each rank has the gradient of its own tokens
            dist.all_reduce(x.grad)
    return {"output": output.detach()} | {name: x.grad for name, x in leaves.items() if x.grad is not None}


def move(case: Case, device: str) -> tuple[rg.Mask | None, rg.Places | None]:
    """The mask and the places of a case on a device."""
    mask = case.mask if case.mask is None else case.mask.to(device)
    places = case.places
    if places is not None:
        places = replace(places, **{name: x.to(device) for name, x in places.tensors().items()})
    return mask, places


GPU_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def type_on_gpu(number: int) -> torch.dtype:
    """The type of a random call on the GPU; Triton's interpreter computes bfloat16 wrongly."""
    types = GPU_TYPES if torch.cuda.is_available() else (torch.float32, torch.float16)
    return types[number // 2 % len(types)]


def compare_on_gpu(number: int, ranks: int) -> dict[str, object]:
    """One random call with all ranks on one GPU, on rank 0 beside the oracle: the share of the allowed error.

    Without a GPU fused kernels run in Triton's interpreter, where they can run the call. The other ranks have the same
    tensors, which is compared bit by bit. What is further off than allowed is computed in one process too.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    case, _, layout = random_case(number, ranks, type_on_gpu(number), device)
    backend = "auto" if device == "cuda" or case.dropout else "triton"
    with chosen_kernels() as kernels:
        first, again = ({name: x.cpu() for name, x in run(case, {}, layout, device, backend).items()} for _ in range(2))
    digests: list[str] = [""] * ranks
    dist.all_gather_object(digests, digest(first))
    same = {"same bits": digest(first) == digest(again), "same bits on all ranks": len(set(digests)) == 1}
    call = {"call": f"{number}: {case} on {layout!r}", "dtype": str(case.dtype).removeprefix("torch."), **same}
    if dist.get_rank():
        return call
    rounded = round_case(case)
    truth = results(rounded, "reference", torch.float64, torch.float64)
    limits = reference_errors(case, truth), cancellation_sizes(rounded)
    actual = {name if name == "output" else f"gradient of {name}": x for name, x in first.items()}
    shares = shares_of_limits(compare_results("sharded", actual, truth, *limits))
    worst = max(shares, key=shares.__getitem__)
    call |= {"kernels": kernels[0], "tensors": len(shares), "worst": worst, "share": shares[worst]}
    if shares[worst] > 1:
        single = results(rounded, kernels[0], case.dtype, case.carried or case.dtype, device)
        call["share of one process"] = shares_of_limits(compare_results("single", single, truth, *limits))[worst]
    return call


def shares_of_limits(found: list[Comparison]) -> dict[str, float]:
    """The error of each tensor over the error that is allowed."""
    return {one.name: one.error / one.limit if one.limit else math.inf for one in found}


def digest(tensors: dict[str, Tensor]) -> str:
    """A hash of the names, types and bits of tensors."""
    text = hashlib.blake2b()
    for name, x in sorted(tensors.items()):
        text.update(f"{name} {list(x.shape)} {x.dtype}".encode() + tensor_bytes(x))
    return text.hexdigest()


@contextmanager
def chosen_kernels() -> Iterator[list[str]]:
    """The names of what computes the pieces of the calls while it is open."""
    names: list[str] = []
    original = sharded_attend.choose_kernels

    def choose(*arguments: Any) -> ModuleType:
        module = original(*arguments)
        names.append(module.__name__.rpartition(".")[2])
        return module

    sharded_attend.choose_kernels = choose
    try:
        yield names
    finally:
        sharded_attend.choose_kernels = original


def check_on_gpu(folder: Path, first: int, last: int, end: float = math.inf) -> None:
    """Random calls whose ranks share the one GPU; none is begun when rank 0's clock is at `end`, in `time.time()`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    calls: list[dict[str, object]] = []
    for number in range(first, last):
        more = [time.time() < end]
        dist.broadcast_object_list(more)
        if not more[0]:
            break
        calls.append(compare_on_gpu(number, dist.get_world_size()))
        (folder / f"rank{dist.get_rank()}.json").write_text(json.dumps({"calls": calls}))
    dist.barrier()
    dist.destroy_process_group()


def compare_views(layout: Layout, case: Case, edges: dict[str, Any]) -> float:
    """The greatest difference of this rank's view from that of one process."""
    q, k = case.q, case.k
    wanted = {"weights": True, "top": 3, "map": (5, 4)}
    options = case.parts() | {"mask": case.mask, "places": case.places} | edges
    view = rg.look(layout.split(q), layout.split(k, keys=True), **options, **wanted, layout=layout)
    single = rg.look(q, k, **options, **wanted)
    worst = 0.0
    for name in ("lse", "entropy", "distance", "peak", "top_weights", "weights", "received", "map"):
        x, y = getattr(view, name), getattr(single, name)
        y = y if name == "map" else layout.split(y, -1, keys=True) if name == "received" else layout.split(y, 2)
        scale = max(1.0, float(y[y.isfinite()].abs().max())) if name == "distance" else 1.0
        worst = max(worst, float((x - y).double().nan_to_num(0.0, 0.0, 0.0).abs().max()) / scale)
    return max(worst, top_key_error(view, layout.split(single.weights, 2)))


def compare_graph_view() -> float:
    """The greatest difference of the entropies and distances of a graph with biases, at explicit places."""
    draw = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 2, 20, 4, generator=draw, dtype=torch.float64) for _ in range(2))
    mask = rg.Edges(torch.randint(0, 20, (2, 90), generator=draw).unique(dim=1))
    bias = rg.PairBias(torch.randn(20, 20, generator=draw, dtype=torch.float64))
    options = {"mask": mask, "position": rg.Alibi(), "bias": bias, "places": rg.Places(torch.arange(20) ** 2 // 9)}
    layout = rg.shard(mask, 20, tile=1)
    view, single = rg.look(layout.split(q), layout.split(k), **options, layout=layout), rg.look(q, k, **options)
    pairs = ((view.entropy, single.entropy), (view.distance, single.distance))
    return max(float((x - layout.split(y, 2)).abs().max()) for x, y in pairs)


def top_key_error(view: rg.View, weights: Tensor) -> float:
    """How far the weights of the keys that a view names are from the weights that it gives them; −1 is no key."""
    keys = view.top_keys
    named = weights.gather(-1, keys.clamp(min=0)).masked_fill(keys < 0, 0.0)
    return float((named - view.top_weights).abs().max()) if keys.numel() else 0.0


def count_bytes() -> dict[str, object]:
    """Bytes that a forward pass receives, and those of the plan."""
    result = {}
    g = torch.Generator().manual_seed(0)
    vectors = rg.Shaw(torch.randn(4, 9, 8, generator=g), 4)
    calls: list[tuple[rg.Mask, dict[str, Any], torch.dtype]] = [
        (rg.Causal(), {}, torch.float32),
        (rg.Window(5, 3), {"position": rg.Rotary()}, torch.bfloat16),
        (rg.longformer(8), {}, torch.float32),
        (rg.longformer(8), {"position": vectors}, torch.float32),
        (rg.Causal(), {"score": rg.Cosine(2.0)}, torch.bfloat16),
    ]
    for mask, parts, dtype in calls:
        layout = rg.shard(mask, 97, tile=4)
        q, k, v = (layout.split(torch.ones(2, heads, 97, 8, dtype=dtype)) for heads in (4, 2, 2))
        with counted_exchanges() as exchanges:
            rg.attend(q, k, v, mask=mask, layout=layout, **parts)
        planned = rg.plan(q, k, v, mask=mask, layout=layout, **parts)
        result[f"{mask} {parts} {dtype}"] = [sum(x.received for x in exchanges), planned.ranks[layout.rank].received]
    return result


def compare_nonfinite() -> dict[str, bool]:
    """Whether NaN and infinity on some ranks reach the rows of one process alone, in outputs and gradients."""
    g = torch.Generator().manual_seed(0)
    result = {}
    for mask in (rg.Causal(), rg.Window(3, 0) | rg.Global(1), rg.Lengths(torch.tensor([17]))):
        layout = rg.shard(mask, 23, tile=2)
        whole = [torch.randn(1, heads, 23, 4, generator=g, dtype=torch.float64) for heads in (4, 2, 2)]
        whole[1][0, 1, 19] = torch.nan
        whole[2][0, 0, 20] = torch.inf
        outputs = []
        for sharded in (True, False):
            leaves = [x.clone().requires_grad_() for x in whole]
            if sharded:
                own = (layout.split(x) for x in leaves)
                part = rg.attend(*own, mask=mask, layout=layout)
                output = layout.gather(part.detach())
                part.sum().backward()
                for x in leaves:
                    dist.all_reduce(x.grad)
            else:
                output = rg.attend(*leaves, mask=mask)
                output.sum().backward()
            outputs.append([output.detach(), *(x.grad for x in leaves)])
        close = [torch.allclose(x, y, rtol=0, atol=1e-12, equal_nan=True) for x, y in zip(*outputs, strict=True)]
        hidden = isinstance(mask, rg.Lengths)  # from all rows
        result[repr(mask)] = all(close) and math.isfinite(float(outputs[0][0].sum())) == hidden
    return result


def refusals() -> dict[str, str]:
    """What ranks say to calls in which they differ; none may wait for another."""
    layout, rank = rg.shard(rg.Causal(), 30), dist.get_rank()
    x = layout.split(torch.randn(1, 1, 30, 4))
    graph = rg.Edges(torch.tensor([[0, 1], [1, 2]]))
    rg.attend(x, x, x, mask=rg.Causal(), layout=layout)  # a kind of call that all know
    calls = {
        "masks": lambda: rg.attend(x, x, x, mask=rg.Window(rank), layout=layout),
        "known masks": lambda: rg.attend(x, x, x, mask=rg.Causal() if rank else rg.Window(9), layout=layout),
        "shapes": lambda: rg.attend(*[x[:, :, rank == 1 :]] * 3, mask=rg.Causal(), layout=layout),
        "method": lambda: rg.attend(x, x, x, method=rg.Nystrom(4), layout=layout),
        "tokens": lambda: rg.shard(rg.Causal(), 30 + rank),
        "few": lambda: rg.shard(rg.Causal(), 2 if rank == 1 else 30),
        "layout masks": lambda: rg.shard(rg.Documents(torch.full((1, 30), rank)), 30),
        "places": lambda: rg.attend(x, x, x, places=rg.Places(torch.arange(30) + rank), layout=layout),
        "gather": lambda: layout.gather(x[..., : 4 - (rank == 1)]),
        "gathered rows": lambda: layout.gather(x[:, :, rank == 2 :]),
        "summed": lambda: layout.sum(x[0, 0, 0, rank == 1 :]),
        "look options": lambda: rg.look(x, x, mask=rg.Causal(), top=2, map=None if rank else 3, layout=layout),
        "functions": lambda: [rg.attend, rg.look][rank == 2](x, x, x, mask=rg.Causal(), layout=layout),
        "edges": lambda: rg.attend(x, x, x, mask=graph, edges=rg.EdgeFeatures(torch.zeros(3)), layout=layout),
    }
    said = {}
    for name, call in calls.items():
        try:
            call()
            said[name] = "nothing"
        except rg.RegardError as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said


def check(folder: Path, first: int, last: int) -> None:
    """Everything above, in a process group of its own."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    gc.disable()  # what a cycle keeps of the group then shows
    references, ranks = sys.getrefcount(dist.group.WORLD), dist.get_world_size()
    results: dict[str, object] = {"calls": [compare(number, ranks) for number in range(first, last)]}
    results |= {"bytes": count_bytes(), "nonfinite": compare_nonfinite(), "refusals": refusals()}
    results["graph view"] = compare_graph_view()
    results["group references"] = sys.getrefcount(dist.group.WORLD) - references
    (folder / f"rank{dist.get_rank()}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def run_ranks(ranks: int, folder: Path, first: int, last: int, check: str = "check", *more: object) -> list[dict]:
    """What every rank found in the random calls first … last − 1, each rank a process."""
    timeout = 200 + 20 * (last - first)
    run_processes("tests.distributed.random_shards", check, ranks, folder, first, last, *more, timeout=timeout)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]


def main(ranks: int, first: int, last: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        everything = run_ranks(ranks, Path(place), first, last)
    found = [one for rank in everything for one in rank["calls"]]
    print(f"{last - first} calls over {ranks} ranks, same bits twice: {all(one['same bits'] for one in found)}")
    print("bytes that differ from the plan's:", [one for one in found if one["bytes"][0] != one["bytes"][1]])
    for name in ("error", "view error"):
        worst = max(found, key=lambda one: one[name])
        print(f"{name} at most {worst[name]:.1e}: {worst['call']}")
    print(*(everything[0][name] for name in ("bytes", "nonfinite", "refusals")), sep="\n")


if __name__ == "__main__":
    main(*(int(x) for x in sys.argv[1:]))
