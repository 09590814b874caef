"""Random sharded calls beside the same call in one process: outputs, all gradients and views, in float64.

Run under torchrun, or by `run_ranks` in processes of its own; every rank writes what it found as JSON.
"""

from __future__ import annotations

import gc
import json
import random
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

import regard as rg
from regard.distributed import Layout, shard_graph

HEADS, DIM = 4, 8


def random_mask(draw: random.Random, g: torch.Generator, batch: int, queries: int, keys: int) -> rg.Mask | None:
    masks = [
        None,
        rg.Causal(),
        ~rg.Causal(),
        rg.Window(5, 3),
        rg.Causal() & rg.Window(7),
        rg.longformer(8),
        rg.bigbird(4, random=2),
        rg.Global(2) | rg.Window(3, 3),
        rg.Dilated(6, 6, 2),
        rg.RandomBlocks(4, 2, 1),
        rg.Causal() & rg.Chunked(7),
        rg.Causal() | rg.Prefix(torch.randint(0, keys, (batch,), generator=g)),
        rg.Tree((-1, 0, 0, 1, 1)[: min(queries, keys)]),
        rg.Lengths(torch.tensor([max(1, keys // 2)] * batch)),
        rg.Pairs(torch.rand(queries, keys, generator=g) > 0.5),
    ]
    if queries == keys:
        masks.append(rg.Documents(torch.randint(0, 3, (batch, keys), generator=g).sort(1).values) & rg.Causal())
        masks.append(rg.Edges(torch.randint(0, keys, (2, 4 * keys), generator=g)))
    return draw.choice(masks)


def random_parts(draw: random.Random, g: torch.Generator, mask: rg.Mask | None) -> rg.Parts:
    new = lambda *size: torch.randn(*size, generator=g, dtype=torch.float64).requires_grad_()  # noqa: E731
    positions = [
        lambda: None,
        lambda: rg.Rotary(),
        lambda: rg.Alibi(),
        lambda: rg.Alibi(new(HEADS)),
        lambda: rg.Bias(new(HEADS, 21), 10),
        lambda: rg.T5Bias(new(HEADS, 8)),
        lambda: rg.Shaw(new(HEADS, 9, DIM), 4),
        lambda: rg.TransformerXL(new(HEADS, 15, DIM), new(HEADS, DIM), new(HEADS, DIM), 7),
        lambda: rg.Disentangled(new(HEADS, 16, DIM), new(HEADS, 16, DIM), 40),
    ]
    scores = [
        lambda: rg.Dot(),
        lambda: rg.Dot(scale=0.3, cap=2.0),
        lambda: rg.Cosine(3.0),
        lambda: rg.Cosine(new(HEADS)),
        lambda: rg.Bilinear(new(HEADS, DIM, DIM)),
        lambda: rg.Additive(new(HEADS, DIM)),
        lambda: rg.Additive(new(HEADS, DIM), "leaky_relu"),
    ]
    position, score = draw.choice(positions)(), draw.choice(scores)()
    if position is not None and position.dot_only and not isinstance(score, rg.Dot):
        score = rg.Dot()
    dropout = draw.choice([0.0, 0.0, 0.3])
    sink = draw.choice([None, None, rg.Sink(), rg.Sink(new(HEADS))])
    return rg.Parts(score, position, mask, dropout=dropout, sink=sink)


def part_tensors(parts: rg.Parts) -> list[Tensor]:
    found = [part for part in (parts.score, parts.position, parts.sink, parts.bias) if part is not None]
    return [x for part in found for x in part.tensors().values() if x.requires_grad]


def compare(case: int, ranks: int) -> dict[str, object]:
    """One random call, sharded twice and whole; the greatest error relative to each tensor, and what else matters."""
    draw, g = random.Random(case), torch.Generator().manual_seed(case)
    batch, kv_heads = draw.choice([1, 2]), draw.choice([4, 2, 1])
    queries = draw.randint(ranks, 90)
    keys = queries if draw.random() < 0.7 else draw.randint(ranks, 120)
    new = lambda *size: torch.randn(*size, generator=g, dtype=torch.float64)  # noqa: E731
    whole = new(batch, HEADS, queries, DIM), new(batch, kv_heads, keys, DIM), new(batch, kv_heads, keys, 5)
    parts = random_parts(draw, g, random_mask(draw, g, batch, queries, keys))
    tile = draw.choice([None, 1, 4])
    tile = tile if tile and min(queries, keys) >= tile * ranks else None
    strategy = draw.choice(["auto", "equal runs", "zigzag", "equal work", "longest first"])
    layout = rg.shard(parts.mask, (queries, keys), strategy=strategy, tile=tile)
    weight = new(batch, HEADS, queries, 5)
    if draw.random() < 0.25:
        rows, columns = draw.choice([(queries, keys), (1, keys), (queries, 1)])
        bias = new(1, draw.choice([1, HEADS]), rows, columns).requires_grad_()
        parts = rg.Parts(parts.score, parts.position, parts.mask, None, parts.dropout, parts.sink, rg.PairBias(bias))
    options = {name: getattr(parts, name) for name in ("score", "position", "mask", "sink", "bias")}

    def run(sharded: bool) -> list[Tensor]:
        tensors = [x.clone().requires_grad_() for x in whole]
        learned = part_tensors(parts)
        for x in learned:
            x.grad = None
        dropout = {"dropout": parts.dropout, "generator": torch.Generator().manual_seed(5)}
        if sharded:
            q, k, v = (layout.split(x, keys=n > 0) for n, x in enumerate(tensors))
            output = rg.attend(q, k, v, **options, **dropout, layout=layout)
            (output * layout.split(weight)).sum().backward()
            output = layout.gather(output.detach())
            for x in tensors:  # each rank has the gradient of its own tokens
                dist.all_reduce(x.grad)
        else:
            output = rg.attend(*tensors, **options, **dropout, backend="reference")
            (output * weight).sum().backward()
        return [output.detach(), *(x.grad for x in tensors), *(x.grad.clone() for x in learned)]

    first, again, single = run(True), run(True), run(False)
    error = max(float((x - y).abs().max() / y.abs().max().clamp(min=1e-3)) for x, y in zip(first, single, strict=True))
    bits = all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    view_error = 0.0 if parts.dropout or case % 3 else compare_views(layout, whole, options)
    return {"call": f"{parts!r} on {layout!r}", "error": error, "same bits": bits, "view error": view_error}


def compare_views(layout: Layout, whole: tuple[Tensor, ...], options: dict) -> float:
    """The greatest difference of this rank's view from that of one process."""
    q, k, _ = whole
    wanted = {"weights": True, "top": 3, "map": (5, 4)}
    view = rg.look(layout.split(q), layout.split(k, keys=True), **options, **wanted, layout=layout)
    single = rg.look(q, k, **options, **wanted)
    worst = 0.0
    for name in ("lse", "entropy", "distance", "peak", "top_weights", "top_keys", "weights", "received", "map"):
        x, y = getattr(view, name), getattr(single, name)
        y = y if name == "map" else layout.split(y, -1, keys=True) if name == "received" else layout.split(y, 2)
        worst = max(worst, float((x - y).double().nan_to_num(0.0, 0.0, 0.0).abs().max()))
    return worst


def count_bytes() -> dict[str, object]:
    """Bytes that a forward pass receives, and those of the plan."""
    from regard.distributed import attention

    counted: list[attention.Exchange] = []
    original = attention.new_exchange
    attention.new_exchange = lambda layout: counted.append(original(layout)) or counted[-1]  # type: ignore[func-returns-value]
    result = {}
    for mask in (rg.Causal(), rg.Window(5, 3), rg.longformer(8)):
        layout = rg.shard(mask, 96, tile=4)
        q, k, v = (layout.split(torch.zeros(2, 4, 96, DIM)) for _ in range(3))
        counted.clear()
        rg.attend(q, k, v, mask=mask, layout=layout)
        planned = rg.plan(q, k, v, mask=mask, layout=layout)
        result[repr(mask)] = [sum(x.received for x in counted), planned.ranks[layout.rank].received]
    attention.new_exchange = original
    return result


def compare_graphs() -> dict[str, float]:
    """GAT and GATv2 over shared-out nodes beside one process: the greatest error of logits and of all gradients."""
    g = torch.Generator().manual_seed(3)
    nodes, features = 50, torch.randn(50, 6, generator=g, dtype=torch.float64)
    edges = torch.randint(0, nodes, (2, 200), generator=g)
    weight = torch.randn(nodes, 3, generator=g, dtype=torch.float64)
    errors = {}
    for version in (1, 2):
        for name, owner in (("runs", None), ("scattered", torch.randint(0, 3, (nodes,), generator=g))):
            torch.manual_seed(0)
            model = (
                rg.models.families.gat.gat(features=6, classes=3, dim=8, heads=2, version=version)
                .build()
                .double()
                .eval()
            )
            layout = shard_graph(edges, nodes, owner=owner if dist.get_world_size() == 3 else None)
            x = features.clone().requires_grad_()
            logits = model(nodes=layout.split(x), edges=layout.edges).logits
            (logits * layout.split(weight)).sum().backward()
            grads = [x.grad, *(p.grad for p in model.parameters())]
            for grad in grads:
                dist.all_reduce(grad)
            sharded = [layout.split(grads[0]), *(one.clone() for one in grads[1:]), logits.detach()]
            model.zero_grad()
            x = features.clone().requires_grad_()
            logits = model(nodes=x, edges=edges).logits
            (logits * weight).sum().backward()
            single = [layout.split(x.grad), *(p.grad for p in model.parameters()), layout.split(logits.detach())]
            pairs = zip(sharded, single, strict=True)
            errors[f"GAT version {version}, {name}"] = max(float((a - b).abs().max()) for a, b in pairs)
    return errors


def refusals() -> dict[str, str]:
    """What ranks say to calls in which they differ; none may wait for another."""
    layout = rg.shard(rg.Causal(), 30)
    rank = dist.get_rank()
    x = layout.split(torch.randn(1, 1, 30, 4))
    calls = {
        "masks": lambda: rg.attend(x, x, x, mask=rg.Window(rank), layout=layout),
        "shapes": lambda: rg.attend(*[x[:, :, rank == 1 :]] * 3, mask=rg.Causal(), layout=layout),
        "method": lambda: rg.attend(x, x, x, method=rg.Nystrom(4), layout=layout),
    }
    said = {}
    for name, call in calls.items():
        try:
            call()
            said[name] = "nothing"
        except rg.RegardError as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said


def main(rank: int, ranks: int, folder: str, first: int, last: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", timedelta(seconds=120), ranks, rank)
    gc.disable()  # what a cycle keeps of the group then shows
    references = sys.getrefcount(dist.group.WORLD)
    calls = [compare(case, ranks) for case in range(first, last)]
    results = {"calls": calls, "bytes": count_bytes(), "graphs": compare_graphs(), "refusals": refusals()}
    results["group references"] = sys.getrefcount(dist.group.WORLD) - references
    Path(folder, f"rank{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def run_ranks(ranks: int, folder: Path, first: int, last: int) -> list[dict]:
    """What every rank found in the random calls first … last − 1, each rank a process."""
    command = [sys.executable, __file__]
    processes = [
        subprocess.Popen([*command, *(str(x) for x in (rank, ranks, folder, first, last))]) for rank in range(ranks)
    ]
    patience = 300 + 20 * (last - first)
    assert [process.wait(patience) for process in processes] == [0] * ranks
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]


if __name__ == "__main__":
    if len(sys.argv) == 6:
        main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:  # python tests/distributed/random_shards.py RANKS FIRST LAST
        count, start, stop = (int(x) for x in sys.argv[1:])
        with tempfile.TemporaryDirectory() as place:
            found = [one for rank in run_ranks(count, Path(place), start, stop) for one in rank["calls"]]
        worst = max(found, key=lambda one: one["error"])
        bits = all(one["same bits"] for one in found)
        views = max(one["view error"] for one in found)
        print(
            f"{stop - start} calls over {count} ranks, errors up to {worst['error']:.1e}, of views {views:.1e}; {bits=}"
        )
