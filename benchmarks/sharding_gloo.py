"""One process of the measurements of `sharding.py` on gloo: what a layout predicts, what happens, and torch beside it.

python benchmarks/sharding_gloo.py RANK RANKS FOLDER {gloo|torch}
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

import regard as rg
from regard.distributed import Link
from regard.distributed.attention import passes

BATCH, HEADS, DIM = 1, 4, 32
TOKENS = {"gloo": 16_384, "torch": 8192}
REPEATS = 5


def document_ids(tokens: int) -> Tensor:
    starts = torch.rand(1, tokens, generator=torch.Generator().manual_seed(0)) < 1 / 1000
    return starts.long().cumsum(1)


def masks(tokens: int) -> dict[str, rg.Mask]:
    return {
        "causal": rg.Causal(),
        "causal window of 1024": rg.Causal() & rg.Window(1023),
        "documents of 1000": rg.Documents(document_ids(tokens)) & rg.Causal(),
        "Longformer 512": rg.longformer(512),
        "BigBird": rg.bigbird(),
    }


def slowest(call: Callable[[], Tensor]) -> float:
    """Seconds of the slowest process in the fastest of several calls: others may use the machine too."""
    times = []
    for _ in range(REPEATS + 1):
        dist.barrier()
        start = time.perf_counter()
        call()
        seconds = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        times.append(float(seconds))
    return min(times[1:])


def calibrate() -> Link:
    """The link of these processes: the time of small and large messages, of attention, and of its pieces."""

    def exchange(count: int) -> Callable[[], Tensor]:
        own, other = torch.zeros(count), torch.empty(count)
        rank, ranks = dist.get_rank(), dist.get_world_size()

        def call() -> Tensor:
            works = [dist.isend(own, (rank + 1) % ranks), dist.irecv(other, (rank - 1) % ranks)]
            for work in works:
                if work is not None:
                    work.wait()
            return other

        return call

    latency, large = slowest(exchange(1)), slowest(exchange(1 << 21))
    tokens = 2048
    x = torch.randn(BATCH, HEADS, tokens, DIM)
    seconds = slowest(lambda: rg.attend(x, x, x, backend="blockwise"))
    rate = 4 * BATCH * HEADS * DIM * tokens * tokens / seconds
    link = Link("measured", latency, (4 << 21) / max(large - latency, 1e-9), rate)
    return replace(link, piece=measure_piece(link))


def measure_piece(link: Link) -> float:
    """Seconds of a run of tokens, from a window in runs of a tile beside the same window in long runs."""
    mask, tokens = rg.Causal() & rg.Window(127), 4096
    whole = torch.randn(BATCH, HEADS, tokens, DIM)
    seconds, pieces = [], []
    for strategy in ("equal runs", "longest first"):
        layout = rg.shard(mask, tokens, strategy=strategy, link=link)
        x = layout.split(whole)
        seconds.append(slowest(lambda: rg.attend(x, x, x, mask=mask, layout=layout)))  # noqa: B023
        pieces.append(int(layout.traffic(mask).pieces().max()))
    return max(seconds[1] - seconds[0], 0.0) / (pieces[1] - pieces[0])


def compare_plan() -> list[dict]:
    """Bytes and seconds of a forward pass, planned and measured."""
    tokens, rows = TOKENS["gloo"], []
    whole = [torch.randn(BATCH, HEADS, tokens, DIM, generator=torch.Generator().manual_seed(n)) for n in range(3)]
    exchanges: list[passes.Exchange] = []
    original = passes.new_exchange
    passes.new_exchange = lambda layout: exchanges.append(original(layout)) or exchanges[-1]  # type: ignore[func-returns-value]
    for name, mask in masks(tokens).items():
        link = calibrate()
        layout = rg.shard(mask, tokens, link=link)
        q, k, v = (layout.split(x) for x in whole)
        planned = rg.plan(q, k, v, mask=mask, layout=layout)
        exchanges.clear()
        rg.attend(q, k, v, mask=mask, layout=layout)
        received = sum(one.received for one in exchanges)
        seconds = slowest(lambda: rg.attend(q, k, v, mask=mask, layout=layout))  # noqa: B023
        rows.append(
            {
                "mask": name,
                "strategy": layout.strategy,
                "bytes received": received,
                "bytes planned": planned.ranks[layout.rank].received,  # type: ignore[attr-defined]
                "bytes of an all-gather": planned.gathered,  # type: ignore[attr-defined]
                "seconds": seconds,
                "seconds planned": planned.seconds,
                "link": {name: value for name, value in asdict(link).items() if name != "name"},
            }
        )
    return rows


def compare_torch() -> list[dict]:
    """A forward pass beside FlexAttention with torch's context parallelism: difference, bytes, seconds."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental._context_parallel import _HeadTailLoadBalancer, flex_cp_allgather
    from torch.distributed.tensor.experimental._context_parallel._attention import _create_cp_block_mask
    from torch.nn.attention.flex_attention import flex_attention

    ranks, tokens, rows = dist.get_world_size(), TOKENS["torch"], []
    mesh = init_device_mesh("cpu", (ranks,))
    balancer = _HeadTailLoadBalancer(tokens, ranks, "cpu")  # torch's default: early and late tokens on each rank
    order = balancer._generate_indices(restore=False)[0]
    part = order[dist.get_rank() * tokens // ranks : (dist.get_rank() + 1) * tokens // ranks]
    compiled, ids = torch.compile(flex_attention), document_ids(tokens)[0]
    whole = [torch.randn(BATCH, HEADS, tokens, DIM, generator=torch.Generator().manual_seed(n)) for n in range(3)]
    mods = {
        "causal": lambda b, h, i, j: j <= i,
        "causal window of 1024": lambda b, h, i, j: (j <= i) & (i - j < 1024),
        "documents of 1000": lambda b, h, i, j: (j <= i) & (ids[i] == ids[j]),
    }
    for name, mod in mods.items():
        mask = masks(tokens)[name]
        layout = rg.shard(mask, tokens)
        own = [layout.split(x) for x in whole]
        q, k, v = (x[:, :, part].contiguous() for x in whole)
        block_mask = _create_cp_block_mask(mod, 1, 1, tokens, tokens, mesh, balancer)

        def torch_call() -> Tensor:
            keys, values = flex_cp_allgather(k, v, 2, mesh.get_group().group_name)  # noqa: B023
            return compiled(q, keys, values, block_mask=block_mask)  # type: ignore[return-value]  # noqa: B023

        def our_call() -> Tensor:
            return rg.attend(*own, mask=mask, layout=layout)  # noqa: B023

        difference = layout.gather(our_call())[:, :, part] - torch_call()
        if difference.abs().max() > 1e-4:
            raise SystemExit(f"{name}: the outputs differ by {float(difference.abs().max())}.")
        planned = rg.plan(*own, mask=mask, layout=layout)
        rows.append(
            {
                "mask": name,
                "greatest difference": float(difference.abs().max()),
                "bytes": planned.ranks[layout.rank].received,  # type: ignore[attr-defined]
                "bytes of torch": (k.numel() + v.numel()) * k.itemsize * (ranks - 1),
                "seconds": slowest(our_call),
                "seconds of torch": slowest(torch_call),
            }
        )
    return rows


def main(rank: int, ranks: int, folder: str, what: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", timedelta(seconds=600), ranks, rank)
    with torch.no_grad():
        found = {"gloo": compare_plan, "torch": compare_torch}[what]()
    Path(folder, f"rank{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
