"""A large graph over several processes beside one: outputs, gradients, time, and the memory of a rank.

    python benchmarks/graph_shards.py --nodes 1000000 --edges 20000000 --ranks 1 2 4

Writes `benchmarks/results/graph_shards.json`. Every number of ranks computes one forward and one backward pass of a
model over the same graph, read from a folder of memory-mapped arrays: each rank its part of the edges and its rows of
the features. One rank is the model on the whole graph, without any sharding. A result that differs from it by more
than rounding ends the run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn import functional

from regard import machine
from regard.data.graphs import read_nodes
from regard.distributed import shard_graph
from regard.models.graph_attention import GATConfig
from regard.models.graph_encoder import GraphEncoderConfig
from regard.models.heads import ClassificationHeadConfig
from regard.models.model import Model
from regard.nn.block import StackConfig

RESULTS = Path(__file__).parent / "results" / "graph_shards.json"
FEATURES, CLASSES, DIM, HEADS = 16, 5, 16, 2
NEAR, FAR = 2000, 0.01
"""Most edges join nodes within about `NEAR` numbers, as after a good ordering; this part joins any two."""
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


class PeakMemory:
    """The most anonymous memory of this process since it was opened, in MB, looked at every hundredth of a second."""

    def __enter__(self) -> PeakMemory:
        self.before = self.peak = anonymous_memory()
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()
        return self

    def watch(self) -> None:
        while not self.closed.wait(0.01):
            self.peak = max(self.peak, anonymous_memory())

    def __exit__(self, *_: object) -> None:
        self.closed.set()
        self.thread.join()

    @property
    def used(self) -> float:
        return self.peak - self.before


def anonymous_memory() -> float:
    """MB of this process that are no mapped file."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024


def run_rank(rank: int, ranks: int, name: str, graph: Path, out: Path) -> None:
    """One forward and backward pass of a rank; its numbers and results go to `out`."""
    torch.set_num_threads(1)
    if ranks > 1:
        dist.init_process_group("gloo", f"file://{out}/store", timedelta(minutes=60), ranks, rank)
    model = make_model(name)
    with PeakMemory() as memory:
        start = time.monotonic()
        (data,) = read_nodes(graph).strict().examples
        numbers = {}
        if ranks == 1:
            nodes, edges, labels, own = data.nodes, data.edges, data.labels, slice(None)
        else:
            count = data.edges.shape[1]
            mine = data.edges[:, count * rank // ranks : count * (rank + 1) // ranks]
            layout = shard_graph(mine, len(data.nodes), parts=True)
            nodes, edges, labels, own = data.nodes[layout.own], layout.edges, data.labels[layout.own], layout.own
            numbers = {"nodes": len(layout.own), "edges": layout.edge_index.shape[1], "halo": len(layout.halo)}
        read = time.monotonic()
        logits = model(nodes=nodes, edges=edges).logits
        forward = time.monotonic()
        (functional.cross_entropy(logits, labels, reduction="sum") / len(data.nodes)).backward()
        for parameter in model.parameters() if ranks > 1 else ():
            dist.all_reduce(parameter.grad)
        backward = time.monotonic()
    numbers |= {"memory": round(memory.used), "read": round(read - start, 1)}
    numbers |= {"forward": round(forward - read, 1), "backward": round(backward - forward, 1)}
    whole = np.lib.format.open_memmap(out.parent / f"logits-{name}-{ranks}.npy", "r+")
    whole[own if isinstance(own, slice) else own.numpy()] = logits.detach().numpy()
    whole.flush()
    if rank == 0:
        grads = {key: p.grad.numpy() for key, p in model.named_parameters() if p.grad is not None}
        np.savez(out.parent / f"grads-{name}-{ranks}.npz", **grads)
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
        for count in sorted({1, *ranks}):
            numbers = run_ranks(count, name, graph, folder, nodes)
            row = {
                "model": name,
                "ranks": count,
                "memory of a rank (MB)": [one["memory"] for one in numbers],
                "seconds": {key: max(one[key] for one in numbers) for key in ("read", "forward", "backward")},
            }
            if count > 1:
                row["halo"] = [one["halo"] for one in numbers]
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
    parser.add_argument("--models", nargs="+", default=["gat", "gatv2"], choices=["gat", "gatv2", "dot"])
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
        results = measure(given.nodes, given.edges, given.ranks, given.models, graph, Path(place))
    if given.write:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
