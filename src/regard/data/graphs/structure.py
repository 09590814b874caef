"""Features of nodes from the edges alone, for graphs whose nodes have no numbers of their own."""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import BadInput, Missing

MAX_WALK_NODES = 20_000
"""Nodes up to which return probabilities of walks are computed, from the whole matrix."""


def degree_features(edges: Tensor, nodes: int) -> Tensor:
    """float32 `[nodes, 3]`: ln(1 + incoming), ln(1 + outgoing), and the mean of the second over a node's sources.

    >>> degree_features(torch.tensor([[0, 1], [1, 1]]), 2)[:, 0].exp().round().tolist()
    [1.0, 3.0]
    """
    incoming, outgoing = (torch.bincount(row, minlength=nodes).float() for row in edges.flip(0))
    degrees = outgoing.log1p()
    around = torch.zeros(nodes).index_add(0, edges[1], degrees[edges[0]]) / incoming.clamp(min=1)
    return torch.stack([incoming.log1p(), degrees, around], dim=1)


def spectral_features(edges: Tensor, nodes: int, dim: int) -> Tensor:
    """float32 `[nodes, dim]`: eigenvectors of the normalized adjacency with the largest eigenvalues but the first.

        D^−½ (A + Aᵀ > 0) D^−½ v = λ v

    scaled to a mean square of 1; the sign is that of the largest component. Nodes of one community have like vectors.
    Columns beyond the number of nodes are zero.
    """
    try:
        from scipy.sparse import coo_matrix
        from scipy.sparse.linalg import eigsh
    except ImportError:
        raise Missing('Spectral features need scipy: pip install "regard[train]".') from None
    import numpy

    both = torch.cat([edges, edges.flip(0)], dim=1).unique(dim=1)
    both = both[:, both[0] != both[1]]
    degree = torch.bincount(both[0], minlength=nodes).double().clamp(min=1)
    values = (degree[both[0]] * degree[both[1]]).rsqrt()
    matrix = coo_matrix((values.numpy(), both.numpy()), shape=(nodes, nodes)).tocsr()
    features = torch.zeros(nodes, dim)
    count = min(dim + 1, nodes - 1)
    if count < 2:
        return features
    if nodes <= 4 * count:
        eigenvalues, vectors = numpy.linalg.eigh(matrix.toarray())
        vectors = vectors[:, numpy.argsort(-eigenvalues)[:count]]
    else:
        start = numpy.random.default_rng(0).standard_normal(nodes)
        eigenvalues, vectors = eigsh(matrix, k=count, which="LA", v0=start)
        vectors = vectors[:, numpy.argsort(-eigenvalues)]
    chosen = torch.from_numpy(vectors[:, 1:].copy())
    signs = chosen.gather(0, chosen.abs().argmax(0, keepdim=True)).sign()
    features[:, : chosen.shape[1]] = (chosen * signs * nodes**0.5).float()
    return features


def walk_features(edges: Tensor, nodes: int, steps: int) -> Tensor:
    """float32 `[nodes, steps]`: the probability that a random walk is back where it began after 1, 2, … steps."""
    if nodes > MAX_WALK_NODES:
        raise BadInput(
            f"Walks on {nodes:,} nodes are not computed, at most {MAX_WALK_NODES:,}. Take structure=spectral."
        )
    matrix = torch.zeros(nodes, nodes)
    matrix[edges[0], edges[1]] = matrix[edges[1], edges[0]] = 1.0
    walk = matrix / matrix.sum(1, keepdim=True).clamp(min=1)
    power, columns = torch.eye(nodes), []
    for _ in range(steps):
        power = power @ walk
        columns.append(power.diagonal().clone())
    return torch.stack(columns, dim=1)
