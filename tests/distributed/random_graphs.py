"""Random graphs shared out among processes, beside the same graphs in one process.

    python tests/distributed/random_graphs.py FIRST LAST

Four processes compute every case in groups of two, three or four.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

import regard as rg
from regard.distributed import GraphLayout, graphs, shard_graph
from regard.models.graph_attention import GATConfig
from regard.models.graph_encoder import GraphEncoderConfig
from regard.models.heads import ClassificationHeadConfig
from regard.models.model import Model
from regard.nn.block import StackConfig
from regard.nn.graphs.attention import prepare_sharded
from regard.nn.graphs.layers import GraphLayersConfig

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.processes import run_processes

RANKS, FEATURES, CLASSES = 4, 5, 3


def random_graph(rng: random.Random, g: torch.Generator) -> tuple[int, Tensor]:
    """(nodes, edges): some nodes have no edges, some edges are listed twice or are loops."""
    nodes = rng.choice([4, 7, 23, 53])
    edges = torch.randint(0, nodes, (2, rng.choice([0, nodes // 2, 3 * nodes, 6 * nodes])), generator=g)
    edges = torch.cat([edges, edges[:, :3], torch.tensor([[0], [0]])], dim=1)
    return nodes, edges[:, (edges != nodes - 1).all(0)]  # the last node is alone


def random_model(rng: random.Random, edge_features: int) -> Model:
    head, layers = ClassificationHeadConfig(CLASSES, 8, per_token=True), rng.choice([1, 2, 3])
    if edge_features or rng.random() < 0.5:
        version, residual = rng.choice([1, 2]), rng.random() < 0.5
        sizes = {"dim": 8, "layers": layers, "heads": rng.choice([1, 2]), "out_heads": rng.choice([1, 2])}
        config = GATConfig(FEATURES, CLASSES, **sizes, version=version, residual=residual, edge_features=edge_features)
    elif rng.random() < 0.3:
        config = GraphEncoderConfig(FEATURES, GraphLayersConfig(8, layers, 2, rng.choice([1, 2])), head)
    else:
        stack = StackConfig(dim=8, layers=layers, heads=4, kv_heads=rng.choice([1, 2, 4]))
        config = GraphEncoderConfig(FEATURES, stack, head)
    return config.build().double().eval()


def compare(case: int, group: dist.ProcessGroup) -> dict[str, object]:
    """The greatest error of the outputs and of all gradients, and whether a second run has the same bits."""
    rng, g = random.Random(case), torch.Generator().manual_seed(case)
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    nodes, edges = random_graph(rng, g)
    edge_features = rng.choice([0, 0, 2])
    torch.manual_seed(case)
    model = random_model(rng, edge_features)
    x = torch.randn(nodes, FEATURES, generator=g, dtype=torch.float64)
    weight = torch.randn(nodes, CLASSES, generator=g, dtype=torch.float64)
    numbers = torch.randn(edges.shape[1], edge_features, generator=g, dtype=torch.float64) if edge_features else None
    owner = torch.randint(0, max(1, ranks - 1), (nodes,), generator=g)  # the last rank has no nodes
    owner, parts = rng.choice([None, owner, torch.randperm(nodes, generator=g) % ranks]), rng.random() < 0.5
    mine = slice(rank, None, ranks) if parts else slice(None)
    layout = shard_graph(
        edges[:, mine], nodes, group, owner=owner, parts=parts, features=None if numbers is None else numbers[mine]
    )
    first, again = (run_sharded(model, layout, x, weight, group) for _ in range(2))
    single = run_single(model, layout, x, edges, numbers, weight)
    pairs = list(zip(first, single, strict=True))
    error = max(float((a - b).abs().max()) for a, b in pairs if a.numel())
    bits = all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    whole = torch.equal(layout.gather(layout.split(x)), x)
    call = f"{case}: {type(model).__name__}, {nodes} nodes, {edges.shape[1]} edges, {ranks} ranks, {parts=}"
    return {"call": call, "error": error, "same bits": bits, "gathered": whole, "own": len(layout.own)}


def run_sharded(model: Model, layout: GraphLayout, x: Tensor, weight: Tensor, group: dist.ProcessGroup) -> list[Tensor]:
    model.zero_grad()
    own = layout.split(x).requires_grad_()
    logits = model(nodes=own, edges=prepare_sharded(layout)).logits
    (logits * layout.split(weight)).sum().backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    for grad in grads:
        dist.all_reduce(grad, group=group)
    assert own.grad is not None
    return [logits.detach(), own.grad, *(grad.clone() for grad in grads)]


def run_single(
    model: Model, layout: GraphLayout, x: Tensor, edges: Tensor, numbers: Tensor | None, weight: Tensor
) -> list[Tensor]:
    model.zero_grad()
    whole = x.clone().requires_grad_()
    arguments = {} if numbers is None else {"edge_features": numbers}
    logits = model(nodes=whole, edges=edges, **arguments).logits
    (logits * weight).sum().backward()
    assert whole.grad is not None
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return [layout.split(logits.detach()), layout.split(whole.grad), *grads]


def refusals(rank: int) -> dict[str, str]:
    """What ranks say to graphs and tensors in which they differ; none may wait for another."""
    edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
    layout = shard_graph(edges, 8)
    own = len(layout.own)
    calls = {
        "edges": lambda: shard_graph(edges + (rank == 1), 8),
        "range": lambda: shard_graph(edges + 4 * (rank == 2), 8),
        "owner": lambda: shard_graph(edges, 8, owner=torch.full((8,), rank % 2)),
        "width": lambda: layout.exchange(torch.zeros(own, 2 + (rank == 3))),
        "rows": lambda: layout.exchange(torch.zeros(own + (rank == 1), 4)),
        "known": lambda: layout.exchange(torch.zeros(own, 1)),
        "known rows": lambda: layout.exchange(torch.zeros(own + (rank == 1), 1)),
        "gathered": lambda: layout.gather(torch.zeros(own, 2), torch.tensor([0, 1 + (rank == 2)])),
    }
    messages = {}
    for name, call in calls.items():
        try:
            call()
            messages[name] = "nothing"
        except rg.RegardError as error:
            messages[name] = f"{type(error).__name__}: {error}"
    return messages


def check(folder: Path, first: int, last: int) -> None:
    """The cases first … last − 1, in groups of two, three and four of the processes."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    graphs.BLOCK = 29  # edges are sent in several blocks
    rank, calls = dist.get_rank(), []
    groups = {size: dist.new_group(list(range(size))) for size in (2, 3)} | {4: dist.group.WORLD}
    for case in range(first, last):
        size = 2 + case % 3
        if rank < size:
            calls.append(compare(case, groups[size]))  # type: ignore[arg-type]
    (folder / f"rank{rank}.json").write_text(json.dumps({"calls": calls, "refusals": refusals(rank)}))
    dist.barrier()
    dist.destroy_process_group()


def run_ranks(folder: Path, first: int, last: int) -> list[dict]:
    """What every rank found in the cases first … last − 1, each rank a process."""
    run_processes(
        "tests.distributed.random_graphs", "check", RANKS, folder, first, last, timeout=200 + 20 * (last - first)
    )
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(RANKS)]


def main(first: int, last: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        results = run_ranks(Path(place), first, last)
    found = [call for rank in results for call in rank["calls"]]
    worst = max(found, key=lambda call: call["error"])
    bits, whole = (all(call[name] for call in found) for name in ("same bits", "gathered"))
    empty = sum(call["own"] == 0 for call in found)
    print(f"{len(found)} shards, worst {worst['error']:.1e} ({worst['call']}), {bits=}, {whole=}, {empty} empty")
    print(results[0]["refusals"])


if __name__ == "__main__":
    main(*(int(x) for x in sys.argv[1:]))
