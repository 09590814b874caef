"""A large graph over several processes beside one: outputs, gradients, time, and the memory of a rank.

    python benchmarks/graph_shards.py --nodes 1000000 --edges 20000000 --ranks 1 2 4

    python benchmarks/graph_shards.py --read --nodes 10000000 --edges 100000000 --ranks 4

Every number of ranks computes one forward and one backward pass of a model over the same graph, read from a folder of
memory-mapped arrays: each rank its part of the edges and its rows of the features. One rank is the model on the whole
graph, without any sharding. A result that differs from it by more than rounding ends the run. With `--read` the graph
is read and shared out only. `--write` writes `benchmarks/results/graph_shards.json`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from peak_memory import PeakMemory
from regard import machine
from regard.data.graphs import Graph, read_nodes
from regard.distributed import ShardedEdges, shard_graph
from regard.models.graph_attention import GATConfig
from regard.models.graph_encoder import GraphEncoderConfig
from regard.models.heads import ClassificationHeadConfig
from regard.models.model import Model
from regard.nn.block import StackConfig

RESULTS = Path(__file__).parent / "results" / "graph_shards.json"
FEATURES, CLASSES, DIM, HEADS = 16, 5, 16, 2
NEAR, FAR = 2000, 0.01
"""Most edges join nodes within about `NEAR` numbers, as after a good ordering; this part joins any two."""
PARTS = ("read", "forward", "backward")
ROUNDING = 2e-4
"""Greatest difference, of the greatest number, that float32 may make over so many edges."""


def write_graph(folder: Path, nodes: int, edges: int) -> None:
    """A random graph as `features.npy`, `labels.npy` and `edges.npy`, of which a block is in memory at a time."""
    draw = np.random.default_rng(0)
    np.save(folder / "features.npy", draw.standard_normal((nodes, FEATURES), dtype="float32"))
    np.save(folder / "labels.npy", draw.integers(0, CLASSES, nodes))
    index = np.lib.format.open_memmap(folder / "edges.npy", "w+", np.int64, (2, edges))
    for first in range(0, edges, 1 << 21):
        count = min(1 << 21, edges - first)
        target = draw.integers(0, nodes, count)
        near = np.round(draw.laplace(0, NEAR / 4, count)).astype("int64")
        source = np.where(draw.random(count) < FAR, draw.integers(0, nodes, count), (target + near) % nodes)
        index[:, first : first + count] = source, target
    index.flush()


def make_model(name: str) -> Model:
    torch.manual_seed(0)
    if name == "dot":
        head = ClassificationHeadConfig(CLASSES, DIM, per_token=True)
        return GraphEncoderConfig(FEATURES, StackConfig(dim=DIM, layers=2, heads=HEADS), head).build()
    version = 1 if name == "gat" else 2
    return GATConfig(FEATURES, CLASSES, DIM, layers=2, heads=HEADS, version=version).build()


def read_rank(rank: int, ranks: int, graph: Path) -> tuple[Graph, Tensor | ShardedEdges, slice | Tensor, dict]:
    """(the graph in memory maps, a rank's edges, the numbers of its nodes, how many there are of each)."""
    (data,) = read_nodes(graph).strict().examples
    if ranks == 1:
        return data, data.edges, slice(None), {}
    count = data.edges.shape[1]
    mine = data.edges[:, count * rank // ranks : count * (rank + 1) // ranks]
    layout = shard_graph(mine, len(data.nodes), parts=True)
    numbers = {"nodes": len(layout.own), "edges": layout.edge_index.shape[1], "halo": len(layout.halo)}
    return data, layout.edges, layout.own, numbers


def run_model(name: str, graph: tuple[Graph, Tensor | ShardedEdges, slice | Tensor], out: Path, ranks: int) -> dict:
    """One forward and backward pass; what it made is beside `out`, its seconds are returned."""
    (data, edges, own), model, start = graph, make_model(name), time.monotonic()
    logits = model(nodes=data.nodes[own], edges=edges).logits
    forward = time.monotonic()
    (functional.cross_entropy(logits, data.labels[own], reduction="sum") / len(data.nodes)).backward()
    for parameter in model.parameters() if ranks > 1 else ():
        dist.all_reduce(parameter.grad)
    backward = time.monotonic()
    whole = np.lib.format.open_memmap(out.parent / f"logits-{name}-{ranks}.npy", "r+")
    whole[own if isinstance(own, slice) else own.numpy()] = logits.detach().numpy()
    whole.flush()
    grads = {key: p.grad.numpy() for key, p in model.named_parameters() if p.grad is not None}
    if ranks == 1 or dist.get_rank() == 0:
        np.savez(out.parent / f"grads-{name}-{ranks}.npz", **grads)
    return {"forward": round(forward - start, 1), "backward": round(backward - forward, 1)}


def run_rank(rank: int, ranks: int, name: str, graph: Path, out: Path) -> None:
    """A rank reads its part and computes a model on it, unless `name` is "read"; its numbers go to `out`."""
    torch.set_num_threads(1)
    if ranks > 1:
        dist.init_process_group("gloo", f"file://{out}/store", timedelta(minutes=60), ranks, rank)
    with PeakMemory() as memory:
        start = time.monotonic()
        *parts, numbers = read_rank(rank, ranks, graph)
        numbers["read"] = round(time.monotonic() - start, 1)
        if name != "read":
            numbers |= run_model(name, (parts[0], parts[1], parts[2]), out, ranks)
    numbers |= {"allocated": memory.allocated, "resident": memory.resident}
    (out / f"{rank}.json").write_text(json.dumps(numbers))
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


def run_ranks(ranks: int, name: str, graph: Path, folder: Path, nodes: int) -> list[dict[str, float]]:
    """The numbers of every rank, each a process."""
    out = folder / f"{name}-{ranks}"
    out.mkdir()
    np.lib.format.open_memmap(folder / f"logits-{name}-{ranks}.npy", "w+", np.float32, (nodes, CLASSES)).flush()
    command = [sys.executable, __file__, "--graph", str(graph), "--out", str(out), "--models", name]
    processes = [subprocess.Popen([*command, "--ranks", str(ranks), "--rank", str(rank)]) for rank in range(ranks)]
    if [process.wait() for process in processes] != [0] * ranks:
        raise SystemExit(f"{name} over {ranks} ranks failed")
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(ranks)]


def compare(folder: Path, name: str, ranks: int) -> dict[str, float]:
    """The greatest difference of logits and of gradients from those of one rank, of the greatest number of each.

    The gradient of a key's bias is zero but for rounding: differences are of a thousandth of the greatest at least.
    """
    one, many = (np.load(folder / f"logits-{name}-{n}.npy", mmap_mode="r") for n in (1, ranks))
    logits = float(np.abs(one - many).max() / np.abs(one).max())
    one, many = (np.load(folder / f"grads-{name}-{n}.npz") for n in (1, ranks))
    least = 1e-3 * max(float(np.abs(one[key]).max()) for key in one.files)
    grads = max(float(np.abs(one[key] - many[key]).max() / max(np.abs(one[key]).max(), least)) for key in one.files)
    if max(logits, grads) > ROUNDING:
        raise SystemExit(f"{name} over {ranks} ranks is wrong: logits by {logits:.1e}, gradients by {grads:.1e}")
    return {"logits": float(f"{logits:.1e}"), "gradients": float(f"{grads:.1e}")}


def measure(nodes: int, edges: int, ranks: list[int], models: list[str], graph: Path, folder: Path) -> dict:
    rows = []
    for name in models:
        for count in sorted({*ranks} if name == "read" else {1, *ranks}):
            numbers = run_ranks(count, name, graph, folder, nodes)
            row = {
                "model": name,
                "ranks": count,
                "allocated by a rank (MB)": [one["allocated"] for one in numbers],
                "resident of a rank (MB)": [one["resident"] for one in numbers],
                "seconds": {
                    key: max(one[key] for one in numbers)
                    for key in ("read", "forward", "backward")
                    if key in numbers[0]
                },
            }
            if count > 1:
                row["halo"] = [one["halo"] for one in numbers]
            if count > 1 and name != "read":
                row["difference"] = compare(folder, name, count)
            print(row, flush=True)
            rows.append(row)
    sizes = {"nodes": nodes, "edges": edges, "features": FEATURES, "dim": DIM, "heads": HEADS, "layers": 2}
    return {
        "date": date.today().isoformat(),
        "versions": machine.versions(),
        "devices": machine.devices(),
        **sizes,
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=20_000_000)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--models", nargs="+", default=["gat", "gatv2"], choices=["gat", "gatv2", "dot", "read"])
    parser.add_argument("--read", action="store_true", help="Read and share out a graph only, without a model.")
    parser.add_argument("--write", action="store_true", help="Write the results file.")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--graph", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        run_rank(given.rank, given.ranks[0], given.models[0], given.graph, given.out)
        return
    with tempfile.TemporaryDirectory() as place:
        graph = Path(place, "graph")
        graph.mkdir()
        write_graph(graph, given.nodes, given.edges)
        models = ["read"] if given.read else given.models
        results = measure(given.nodes, given.edges, given.ranks, models, graph, Path(place))
    if given.write:
        before = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
        kept = {name: x for name, x in before.items() if name == "read"}
        RESULTS.write_text(json.dumps({**before, "read": results} if given.read else results | kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
