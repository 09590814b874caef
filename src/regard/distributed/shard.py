"""`regard.shard`: the layout of a sequence over processes, chosen for the masks that a model uses."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from ..attention.parts.mask import Mask, PairGrid
from ..attention.parts.masks import Everything
from ..errors import BadInput
from .assignment import STRATEGIES, Assignment, tile_tokens
from .exchange import compare, digest_mask
from .layout import Layout
from .links import Link, find_link
from .traffic import Sizes, best_traffic
from .visited import Visited, find_visited

MAX_TILE = 512
MAX_TILES = 32768  # along the sequence, beyond which tiles grow
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
    pairs_per_token: float = 0.0,
) -> Layout:
    """`regard.shard`."""
    group, ranks, rank = resolve_mesh(mesh)
    given = (masks,) if isinstance(masks, Mask | str) else (Everything(),) if masks is None else tuple(masks)
    compare(
        group,
        lambda: check_layout(given, tokens, ranks, tile, strategy, link),
        f"{tokens} {tile} {strategy} {link} {pairs_per_token} {[digest_mask(mask) for mask in given]}",
        "tokens, masks or options of a layout",
    )
    queries, keys = (tokens, tokens) if isinstance(tokens, int) else tokens
    size = tile or tile_size(min(queries, keys), max(queries, keys), ranks)
    gpu = group is not None and dist.get_backend(group) == "nccl"
    cost_link = find_link(link or ("nvlink" if gpu else "gloo" if group is not None else "infiniband"))
    visited = [find_visited(mask, PairGrid(queries, keys, device=mask.device()), size) for mask in given]
    sizes = replace(TYPICAL, token=pairs_per_token * TYPICAL.pair)
    best, best_time = None, float("inf")
    for name in [strategy] if strategy != "auto" else STRATEGIES:
        assignment = assign(name, visited, ranks, size, (queries, keys), pairs_per_token)
        times = [best_traffic(one, assignment, sizes, cost_link)[1] for one in visited]
        seconds = float(torch.stack(times).sum(0).max())
        if seconds < best_time * 0.99:  # an earlier, simpler one is preferred to one that is hardly faster
            best, best_time = (name, assignment), seconds
    if best is None:
        raise BadInput(f"No layout of {queries} × {keys} tokens over {ranks} ranks was found.")
    return Layout(*best, rank, group, given, cost_link, sizes)


def check_layout(
    masks: tuple[Mask, ...],
    tokens: int | tuple[int, int],
    ranks: int,
    tile: int | None,
    strategy: str,
    link: Link | str | None,
) -> None:
    """Raise `BadInput` for masks, sizes or options that make no layout."""
    sizes = (tokens, tokens) if isinstance(tokens, int) else tokens
    if not isinstance(sizes, tuple | list) or len(sizes) != 2 or not all(type(size) is int for size in sizes):
        raise BadInput(f"tokens is {tokens!r}; it must be a number of tokens, or (queries, keys).")
    if min(sizes) < ranks:
        raise BadInput(
            f"{min(sizes)} tokens cannot be shared out among {ranks} ranks; each needs at least one. "
            "Use fewer processes for this length."
        )
    if not masks or not all(isinstance(mask, Mask) for mask in masks):
        shown = masks[0] if len(masks) == 1 else masks
        raise BadInput(f"masks is {shown!r:.80}; it must be a Mask, a list of them, or None for no mask.")
    for mask in masks:
        check_mask(mask, *sizes)
    if tile is not None and (type(tile) is not int or tile < 1):
        raise BadInput(f"tile is {tile!r}; it must be a number of tokens, at least 1.")
    size = tile or tile_size(min(sizes), max(sizes), ranks)
    if min(sizes) <= size * (ranks - 1):
        raise BadInput(
            f"Tiles of {size} tokens leave some of {ranks} ranks without any of {min(sizes)} tokens; "
            "give a smaller tile."
        )
    if strategy != "auto" and strategy not in STRATEGIES:
        raise BadInput(f"There is no strategy {strategy!r}; choose one of {', '.join(STRATEGIES)}, or 'auto'.")
    if link is not None:
        find_link(link)


def check_mask(mask: Mask, queries: int, keys: int) -> None:
    """Raise `BadInput` for a mask of other sizes, whatever its batch and heads are, which a layout does not know."""
    tensors = mask.tensors()
    batches = sorted({1, *(x.shape[0] for x in tensors if x.dim())})
    heads = sorted({1, *(x.shape[-3] for x in tensors if x.dim() > 2)})
    message = ""
    for batch, count in itertools.product(batches, heads):
        try:
            mask.check(PairGrid(queries, keys, batch, count, mask.device()))
        except BadInput as error:
            message = str(error)
        else:
            return
    raise BadInput(message)


def assign(
    name: str,
    visited: Sequence[Visited],
    ranks: int,
    tile: int,
    tokens: tuple[int, int],
    pairs_per_token: float = 0.0,
) -> Assignment:
    """The rank of every tile of queries and of keys, by the work of all masks; heavy rows are everybody's."""
    rows = torch.stack([one.light.counts().double() for one in visited]).sum(0)
    rows += len(visited) * pairs_per_token * tile_tokens(len(rows), tile, tokens[0]) / tile**2
    owner = STRATEGIES[name](rows, ranks)
    square = tokens[0] == tokens[1]
    keys = owner if square else STRATEGIES["equal runs"](torch.ones(visited[0].tiles.columns), ranks)
    return Assignment(owner, keys, ranks, tile, tokens)


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
    elif isinstance(mesh, ProcessGroup):
        group = mesh
    else:
        raise BadInput(
            f"mesh is {mesh!r:.80}; it must be a dimension of a DeviceMesh, a process group, a number of ranks to plan "
            "with, or None for all processes."
        )
    rank = dist.get_rank(group)
    if rank < 0:
        raise BadInput("This process is not one of the mesh. Call it in those that are.")
    return group, dist.get_world_size(group), rank
