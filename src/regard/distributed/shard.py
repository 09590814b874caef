"""`regard.shard`: the layout of a sequence over processes, chosen for the masks that a model uses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from ..attention.parts.mask import Mask, PairGrid
from ..attention.parts.masks import Everything
from ..errors import BadInput
from .assignment import STRATEGIES
from .layout import Layout
from .links import Link, find_link
from .traffic import Sizes, find_heavy, find_traffic, rank_costs, visited_tiles

MAX_TILE = 512
MAX_TILES = 4096  # along the sequence, beyond which tiles grow
TILES_PER_RANK = 16  # at least, where the sequence has them
TYPICAL = Sizes(key=2 * 64 * 2 * 16, query=64 * 2 * 16, output=64 * 4 * 16, pair=4 * 64 * 16)  # 16 heads of 64, bf16


def make_layout(
    masks: Mask | Sequence[Mask] | None,
    tokens: int | tuple[int, int],
    mesh: DeviceMesh | ProcessGroup | int | None = None,
    *,
    strategy: str = "auto",
    link: Link | str | None = None,
    tile: int | None = None,
) -> Layout:
    """`regard.shard`."""
    group, ranks, rank = resolve_mesh(mesh)
    queries, keys = (tokens, tokens) if isinstance(tokens, int) else tokens
    if min(queries, keys) < ranks:
        raise BadInput(
            f"{min(queries, keys)} tokens cannot be shared out among {ranks} ranks; each needs at least one. "
            "Use fewer processes for this length."
        )
    given = (masks,) if isinstance(masks, Mask) else (Everything(),) if masks is None else tuple(masks)
    if not given or not all(isinstance(mask, Mask) for mask in given):
        raise BadInput(f"masks is {masks!r:.80}; it must be a Mask, a list of them, or None for no mask.")
    device = "cuda" if group is not None and dist.get_backend(group) == "nccl" else "cpu"
    cost_link = find_link(link or ("nvlink" if device == "cuda" else "gloo" if group is not None else "infiniband"))
    size = tile or tile_size(min(queries, keys), max(queries, keys), ranks)
    if min(queries, keys) <= size * (ranks - 1):
        raise BadInput(
            f"Tiles of {size} tokens leave some of {ranks} ranks without any of {min(queries, keys)} tokens; "
            "give a smaller tile."
        )
    visited = visited_tiles(given, PairGrid(queries, keys, device=given[0].device()), size)
    if strategy != "auto" and strategy not in STRATEGIES:
        raise BadInput(f"There is no strategy {strategy!r}; choose one of {', '.join(STRATEGIES)}, or 'auto'.")
    names = [strategy] if strategy != "auto" else list(STRATEGIES)
    best, best_time = None, float("inf")
    for name in names:
        owners = assign(name, visited, ranks, square=queries == keys)
        seconds = layout_time(visited, *owners, ranks, size, (queries, keys), cost_link)
        if seconds < best_time * 0.99:  # an earlier, simpler one is preferred to one that is hardly faster
            best, best_time = (name, *owners), seconds
    if best is None:
        raise BadInput(f"No layout of {queries} × {keys} tokens over {ranks} ranks was found.")
    return Layout(*best, ranks, rank, group, (queries, keys), size, given, cost_link)


def assign(name: str, visited: list[Tensor], ranks: int, *, square: bool) -> tuple[Tensor, Tensor]:
    """The rank of every tile of queries and of keys, by the work of all masks; heavy rows are everybody's."""
    rows = torch.stack([x.sum(1).double().masked_fill(find_heavy(x, ranks), 0.0) for x in visited]).sum(0)
    owner = STRATEGIES[name](rows, ranks)
    keys = owner if square else STRATEGIES["equal runs"](torch.ones(visited[0].shape[1]), ranks)
    return owner, keys


def layout_time(
    visited: list[Tensor],
    query_owner: Tensor,
    key_owner: Tensor,
    ranks: int,
    tile: int,
    tokens: tuple[int, int],
    link: Link,
) -> float:
    """Seconds of the slowest rank, over one call with each mask."""
    times = torch.zeros(ranks, dtype=torch.float64)
    for tiles in visited:
        traffic = find_traffic(tiles, query_owner, key_owner, ranks)
        times += torch.tensor(
            [x.seconds for x in rank_costs(traffic, tile, tokens, TYPICAL, link)], dtype=torch.float64
        )
    return float(times.max())


def tile_size(least: int, most: int, ranks: int) -> int:
    """The size of tiles: a power of two that gives every rank several, and the whole sequence not too many."""
    size = MAX_TILE
    while size > 1 and least < size * TILES_PER_RANK * ranks:
        size //= 2
    while most > size * MAX_TILES:
        size *= 2
    return size


def resolve_mesh(mesh: DeviceMesh | ProcessGroup | int | None) -> tuple[ProcessGroup | None, int, int]:
    """(group, ranks, this rank)."""
    if isinstance(mesh, int):
        if mesh < 1:
            raise BadInput(f"mesh is {mesh}; a number of ranks must be at least 1.")
        return None, mesh, 0
    if isinstance(mesh, DeviceMesh):
        if mesh.ndim != 1:
            raise BadInput(
                f"The mesh has {mesh.ndim} dimensions; a sequence is sharded along one of them. "
                f"Name it, such as mesh[{(mesh.mesh_dim_names or ('sequence',))[0]!r}]."
            )
        group = mesh.get_group()
    elif mesh is None:
        if not dist.is_initialized():
            raise BadInput(
                "No processes are connected: start with torchrun and call torch.distributed.init_process_group, "
                "or give a number of ranks to plan with."
            )
        group = dist.group.WORLD
    else:
        group = mesh
    return group, dist.get_world_size(group), dist.get_rank(group)
