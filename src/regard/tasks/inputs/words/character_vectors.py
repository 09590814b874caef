"""Vectors of characters from plain text, in closed form: positive pointwise mutual information and its SVD."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

OFFSETS = (-2, -1, 1, 2)
"""Where the neighbours stand that are counted, each position separately."""
MAX_DENSE = 500
"""Characters up to which the decomposition is computed whole."""


def character_vectors(texts: Iterable[str], number: Mapping[str, int], dim: int) -> Tensor:
    """A vector for each number, `[1 + largest number, dim]`, of mean length 1; zeros for characters not in the texts.

    Characters that occur beside the same characters get similar vectors: the rows of U √S in the truncated singular
    value decomposition U S Vᵀ of max(0, ln p(c, n) / (p(c) p(n))), over characters c and neighbours n at `OFFSETS`.
    """
    import numpy as np
    from scipy.sparse import coo_matrix
    from scipy.sparse.linalg import svds

    size = 1 + max(number.values())
    codes = np.array([code for text in texts for code in (*(number.get(c, 0) for c in text), 0, 0)])
    rows, columns = [], []
    for n, offset in enumerate(OFFSETS):
        here, there = (codes[:-offset], codes[offset:]) if offset > 0 else (codes[-offset:], codes[:offset])
        known = (here > 0) & (there > 0)
        rows.append(here[known])
        columns.append(there[known] + n * size)
    pairs = coo_matrix(
        (np.ones(sum(map(len, rows))), (np.concatenate(rows), np.concatenate(columns))), (size, len(OFFSETS) * size)
    )
    pairs.sum_duplicates()
    total, by_row, by_column = pairs.data.sum(), np.asarray(pairs.sum(1))[:, 0], np.asarray(pairs.sum(0))[0]
    ratio = pairs.data * total / (by_row[pairs.row] * by_column[pairs.col])
    information = coo_matrix((np.log(ratio).clip(0), (pairs.row, pairs.col)), pairs.shape).tocsr()
    rank = min(dim, size - 1)
    if size <= MAX_DENSE:  # Lanczos iterations restart at random where singular values are equal, as in small texts
        u, s, _ = np.linalg.svd(information.toarray(), full_matrices=False)
        u, s = u[:, :rank], s[:rank]
    else:
        u, s, _ = svds(information, k=rank, v0=np.ones(size))
    vectors = np.zeros((size, dim), "float32")
    vectors[:, :rank] = u * np.sqrt(s)
    lengths = np.linalg.norm(vectors, axis=1)
    return torch.from_numpy(vectors / max(1e-12, lengths[lengths > 0].mean()))
