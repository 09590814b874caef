"""Graphs over several processes: each rank owns nodes and receives, once a layer, those that its edges come from.

What a rank needs of the others (its halo) is worked out once, and its owners are told. A layer exchanges the keys and
values of the halo in one message to each rank; in backward their gradients return the same way and are added in the
order of ranks, so that the same run gives the same bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.functional import pad

from ..attention.parts.edges import Edges
from ..attention.parts.mask import Mask, PairGrid, Tiling
from ..errors import BadInput
from .exchange import compare, gather_counts, message_device, send_rows, sum_over_ranks, swap
from .partition import partition_edges, partition_runs
from .shard import resolve_mesh

BLOCK = 1 << 18
"""Edges that are sent and numbered together: memory of about 75 bytes for each, whatever the number of ranks."""


@dataclass(frozen=True, eq=False)
class GraphLayout:
    """The nodes of a graph shared out: `owner [nodes]` has the rank of each, in 16 bits.

    `own` are this rank's nodes, `edges` its part of the graph for `GraphAttention` and other layers: rows are its own
    nodes, columns these and then the halo. `sends[r]` are the rows that rank r needs, `receives[r]` how many come from
    it. `edge_features [edges, n]` are the numbers of the rank's edges, self-loops not counted.
    """

    owner: Tensor
    own: Tensor
    halo: Tensor
    mask: Edges
    sends: tuple[Tensor, ...]
    receives: tuple[int, ...]
    rank: int
    group: ProcessGroup | None
    self_loops: bool = True
    edge_features: Tensor | None = None
    compared: set[str] = field(default_factory=set)

    @property
    def edges(self) -> ShardedEdges:
        return ShardedEdges(self.mask, self)  # not stored: a cycle would keep the group alive after it is destroyed

    @property
    def edge_index(self) -> Tensor:
        """This rank's edges by local numbers, without the self-loops, `[2, edges]`."""
        index = self.mask.edge_index
        return index[:, : index.shape[1] - len(self.own)] if self.self_loops else index

    @property
    def ranks(self) -> int:
        return len(self.receives)

    def to(self, device: torch.device | str) -> GraphLayout:
        """The same layout for tensors on a device."""
        if self.mask.edge_index.device == torch.device(device):
            return self
        sends = tuple(rows.to(device) for rows in self.sends)
        features = None if self.edge_features is None else self.edge_features.to(device)
        return replace(self, mask=Edges(self.mask.edge_index.to(device)), sends=sends, edge_features=features)

    def split(self, x: Tensor) -> Tensor:
        """This rank's rows of x `[nodes, ...]`."""
        if len(x) != len(self.owner):
            raise BadInput(f"x is {list(x.shape)}; it must have a row for each of the {len(self.owner)} nodes.")
        return x[self.own.to(x.device)]

    def gather(self, x: Tensor, nodes: Tensor | None = None) -> Tensor:
        """x of all nodes, or of some in the given order, on every rank, from the rows of each rank's own.

        x `[own, ...]` → `[nodes, ...]`, without gradient.
        """
        wanted = "all" if nodes is None else hashlib.blake2b(nodes.cpu().numpy().tobytes()).hexdigest()
        agree(self, f"{describe([x])} of {wanted}", lambda: self.check_rows(x))
        owner = self.owner if nodes is None else self.owner[nodes]
        mine = (owner == self.rank).nonzero()[:, 0]
        own = x.detach() if nodes is None else x.detach()[torch.searchsorted(self.own, nodes[mine]).to(x.device)]
        rows = [x.new_empty(size, *x.shape[1:]) for size in torch.bincount(owner, minlength=self.ranks).tolist()]
        swap(self.group, self.rank, [own] * self.ranks, rows)
        rows[self.rank] = own
        whole = x.new_empty(len(owner), *x.shape[1:])
        for rank, values in enumerate(rows):
            whole[(owner == rank).to(x.device)] = values
        return whole

    def exchange(self, x: Tensor) -> Tensor:
        """x of this rank's nodes `[own, ...]` and of the halo, `[own + halo, ...]`."""
        return self.exchange_all(x)[0]

    def exchange_all(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Each of these `[own, ...]` with the rows of the halo behind; one message to each rank for all of them."""
        agree(self, describe(tensors), lambda: [self.check_rows(x) for x in tensors])
        return ExchangeHalo.apply(self, *tensors)  # type: ignore[return-value]

    def check_rows(self, x: Tensor) -> None:
        """`BadInput` unless x has a row for each of this rank's nodes, and there are processes to exchange with."""
        if len(x) != len(self.own):
            raise BadInput(f"x is {list(x.shape)}; it must have a row for each of this rank's {len(self.own)} nodes.")
        if self.group is None:
            raise BadInput("This layout was made for a number of ranks and has no processes; give shard_graph a mesh.")

    @property
    def halo_bytes(self) -> int:
        """Rows that this rank receives in each layer."""
        return sum(self.receives)


@dataclass(frozen=True, eq=False, repr=False)
class ShardedEdges(Mask):
    """The edges of a rank's nodes, by local numbers, and how the other ends are fetched."""

    mask: Edges
    layout: GraphLayout

    @property
    def by_rows(self) -> bool:
        return True

    def exchange_keys(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """k and v `[1, heads, own, ...]` with those of the halo behind, `[1, heads, own + halo, ...]`."""
        if k.shape[0] != 1:
            raise BadInput(f"k is {list(k.shape)}; a graph that is shared out is one batch, [1, heads, nodes, dim].")
        k, v = self.layout.exchange_all(*(x[0].transpose(0, 1) for x in (k, v)))  # [nodes, heads, ...]
        return k.transpose(0, 1)[None], v.transpose(0, 1)[None]

    def check(self, grid: PairGrid) -> None:
        self.mask.check(grid)

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return self.mask.allow(i, j)

    def permits(self, i: Tensor, j: Tensor, grid: PairGrid) -> Tensor:
        return self.mask.permits(i, j, grid)

    def tiles(self, tiling: Tiling) -> Tensor:
        return self.mask.tiles(tiling)


def shard_graph(
    edges: Tensor,
    nodes: int,
    mesh: DeviceMesh | ProcessGroup | int | None = None,
    *,
    owner: Tensor | None = None,
    self_loops: bool = True,
    rank: int | None = None,
    features: Tensor | None = None,
    parts: bool = False,
) -> GraphLayout:
    """The layout of a graph over the ranks of `mesh` (as for `regard.shard`).

    `edges [2, edges]` are sources, then targets, `features [edges, n]` their numbers. Every rank gives all edges, or
    with `parts` any of them, which together are the graph: they are sent to the owners of their targets, and no rank
    ever holds all. `owner [nodes]` names the rank of each node; without it `pymetis` cuts the graph where it is
    installed and every rank has all edges, otherwise each rank gets a run of nodes with an equal share of the edges.

    >>> layout = shard_graph(torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), 4, 2, rank=1)
    >>> layout.own.tolist(), layout.halo.tolist()
    ([2, 3], [1])
    """
    group, ranks, own_rank = resolve_mesh(mesh)
    rank = own_rank if rank is None else rank
    device, edges = edges.device, edges.cpu()
    compare(
        group, lambda: check_graph(edges, nodes, ranks, owner, features), digest(edges, nodes, owner, parts), "graphs"
    )
    owner = broadcast_owner(edges, nodes, ranks, rank, group, parts) if owner is None else owner.cpu()
    owner = owner.to(torch.int16 if ranks < 1 << 15 else torch.int32)  # every rank has it for all nodes
    own = (owner == rank).nonzero()[:, 0]
    loops = len(own) if self_loops else 0
    index, own_features = find_own_edges(edges, features, owner, rank, group if parts else None, loops)
    count = index.shape[1] - loops
    halo = find_halo(index[0, :count], owner, rank)
    receives = torch.bincount(owner[halo], minlength=ranks)
    wanted = wanted_nodes(edges, owner, rank, ranks) if group is None else request(halo, receives, rank, group)
    for first in range(0, count, BLOCK):  # in place: the edges are the most of a rank's memory
        source, target = index[:, first : min(first + BLOCK, count)]
        source.copy_(local_numbers(source.contiguous(), own, halo, owner))
        target.copy_(torch.searchsorted(own, target.contiguous()))
    index[:, count:] = torch.arange(loops)
    sends = tuple(torch.searchsorted(own, ids) for ids in wanted)
    counts = tuple(receives.tolist())
    layout = GraphLayout(owner, own, halo, Edges(index), sends, counts, rank, group, self_loops, own_features)
    return layout.to(device)


def check_graph(edges: Tensor, nodes: int, ranks: int, owner: Tensor | None, features: Tensor | None) -> None:
    """Raise `BadInput` for edges, owners or features that do not fit the nodes."""
    if nodes < ranks:
        raise BadInput(f"{nodes} nodes cannot be shared out among {ranks} ranks; each needs at least one.")
    if edges.dim() != 2 or edges.shape[0] != 2:
        raise BadInput(f"edges have shape {list(edges.shape)}; they must be [2, edges]: sources, then targets.")
    if edges.numel() and (int(edges.min()) < 0 or int(edges.max()) >= nodes):
        raise BadInput(f"edges have nodes {int(edges.min())} to {int(edges.max())}; there are 0 … {nodes - 1}.")
    if owner is not None and (owner.shape != (nodes,) or int(owner.min()) < 0 or int(owner.max()) >= ranks):
        raise BadInput(f"owner is {list(owner.shape)}; it must be [{nodes}] with ranks 0 … {ranks - 1}.")
    if features is not None and (features.dim() != 2 or len(features) != edges.shape[1]):
        raise BadInput(f"features are {list(features.shape)}; they must be [{edges.shape[1]}, n], a row for each edge.")


def local_numbers(nodes: Tensor, own: Tensor, halo: Tensor, owner: Tensor) -> Tensor:
    """The rows of nodes among a rank's own and the halo behind them, which is sorted by owner and number."""
    count = len(owner)
    places, wanted = (owner[x].long() * count + x for x in (halo, nodes))
    rows = torch.searchsorted(places, wanted) + len(own)
    if not len(own):
        return rows
    place = torch.searchsorted(own, nodes).clamp(max=len(own) - 1)
    return torch.where(own[place] == nodes, place, rows)


def digest(edges: Tensor, nodes: int, owner: Tensor | None, parts: bool) -> str:
    """What all ranks must have in common."""
    text = hashlib.blake2b(f"{nodes} {parts}".encode())
    for x in ([] if parts else [edges]) + ([] if owner is None else [owner]):
        text.update(x.cpu().contiguous().numpy().tobytes())
    return text.hexdigest()


def describe(tensors: Sequence[Tensor]) -> str:
    return f"{[(tuple(x.shape[1:]), x.dtype) for x in tensors]}"


def agree(layout: GraphLayout, call: str, check: Callable[[], object]) -> None:
    """Raise on every rank unless `check` passes on all and they exchange tensors of the same sizes and types.

    On GPUs each kind of call is compared once, since the result would have to be waited for.
    """
    if call in layout.compared and layout.group is not None and message_device(layout.group).type != "cpu":
        check()
        return
    compare(layout.group, check, call, "tensors to exchange")
    layout.compared.add(call)


def broadcast_owner(
    edges: Tensor, nodes: int, ranks: int, rank: int, group: ProcessGroup | None, parts: bool
) -> Tensor:
    """The rank of each node, the same on every rank: rank 0 cuts the graph, or the edges to each node are counted."""
    if group is None:
        return partition_edges(edges, nodes, ranks)
    if parts:
        return partition_runs(sum_over_ranks(torch.bincount(edges[1].long(), minlength=nodes), group), ranks)
    owner = partition_edges(edges, nodes, ranks) if rank == 0 else torch.empty(nodes, dtype=torch.long)
    owner = owner.to(message_device(group))
    dist.broadcast(owner, group=group, group_src=0)
    return owner.cpu()


def find_own_edges(
    edges: Tensor, features: Tensor | None, owner: Tensor, rank: int, group: ProcessGroup | None, loops: int
) -> tuple[Tensor, Tensor | None]:
    """The edges to a rank's nodes and their features, of all edges or, with a group, of those that all ranks have.

    Edges are sent block by block, each to the owner of its target. Behind them is room for so many self-loops.
    """
    if group is None:
        inside = (owner[edges[1].long()] == rank).nonzero()[:, 0]
        index = pad(edges[:, inside].long(), (0, loops))
        return index, None if features is None else features.cpu()[inside]
    ranks = dist.get_world_size(group)
    counts = torch.zeros(ranks, dtype=torch.long)
    for first in range(0, edges.shape[1], BLOCK):
        counts += torch.bincount(owner[edges[1, first : first + BLOCK].long()], minlength=ranks)
    every, at = gather_counts(counts, group), 0
    total, most = int(every[:, rank].sum()), int(every.sum(1).max())
    index = torch.empty(2, total + loops, dtype=torch.long)
    own_features = None if features is None else torch.empty(total, features.shape[1], dtype=features.dtype)
    for first in range(0, max(most, 1), BLOCK):
        block = edges[:, first : first + BLOCK].long()
        rows = [block.mT] if features is None else [block.mT, features[first : first + BLOCK].cpu()]
        received, *rest = send_rows(rows, owner[block[1]], rank, group)
        index[:, at : at + len(received)] = received.mT
        if own_features is not None:
            own_features[at : at + len(received)] = rest[0]
        at += len(received)
    return index, own_features


def find_halo(sources: Tensor, owner: Tensor, rank: int) -> Tensor:
    """The nodes of other ranks among the sources of edges, by owner and number."""
    needed = torch.zeros(len(owner), dtype=torch.bool)
    needed[sources] = True
    halo = (needed & (owner != rank)).nonzero()[:, 0]
    return halo[torch.argsort(owner[halo], stable=True)]


def wanted_nodes(edges: Tensor, owner: Tensor, rank: int, ranks: int) -> list[Tensor]:
    """The nodes that each rank needs of this one, from all edges."""
    source, target = edges.long()
    here = owner[source] == rank
    source, to = source[here], owner[target[here]]
    return [torch.unique(source[to == other]) if other != rank else source[:0] for other in range(ranks)]


def request(halo: Tensor, receives: Tensor, rank: int, group: ProcessGroup) -> list[Tensor]:
    """The nodes that each rank needs of this one, when each says what it needs of the others."""
    device = message_device(group)
    every = gather_counts(receives, group)
    wanted = [torch.empty(n, dtype=torch.long, device=device) for n in every[:, rank].tolist()]
    swap(group, rank, list(halo.to(device).split(receives.tolist())), wanted)
    return [ids.cpu() for ids in wanted]


class ExchangeHalo(torch.autograd.Function):
    """Rows of other ranks behind a rank's own; backward adds their gradients to the rows of their owners."""

    @staticmethod
    def forward(ctx: Any, layout: GraphLayout, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.layout, ctx.shapes = layout, [x.shape[1:] for x in tensors]
        sends = [join([x[rows.to(x.device)] for x in tensors]) for rows in layout.sends]
        halo = sends[0].new_empty(sum(layout.receives), sends[0].shape[1])
        swap(layout.group, layout.rank, sends, list(halo.split(list(layout.receives))))
        rows = divide(halo, ctx.shapes)
        return tuple(torch.cat([x, behind.to(x.dtype)]) for x, behind in zip(tensors, rows, strict=True))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        layout: GraphLayout = ctx.layout
        count = len(layout.own)
        own = [grad[:count].clone() for grad in grads]
        halo = join([grad[count:] for grad in grads])
        returned = [halo.new_empty(len(rows), halo.shape[1]) for rows in layout.sends]
        swap(layout.group, layout.rank, list(halo.split(list(layout.receives))), returned)
        for rows, values in zip(layout.sends, returned, strict=True):  # distinct rows, in the order of ranks
            for x, part in zip(own, divide(values, ctx.shapes), strict=True):
                x[rows.to(x.device)] += part.to(x.dtype)
        return None, *own


def join(tensors: Sequence[Tensor]) -> Tensor:
    """The rows of tensors beside each other, `[rows, numbers]`, in their widest type."""
    dtype = max((x.dtype for x in tensors), key=lambda dtype: dtype.itemsize)
    return torch.cat([x[..., None].flatten(1).to(dtype) for x in tensors], dim=1)


def divide(rows: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """The reverse of `join`, for rows of these shapes."""
    parts = rows.split([shape.numel() for shape in shapes], dim=1)
    return [part.reshape(len(part), *shape) for part, shape in zip(parts, shapes, strict=True)]
