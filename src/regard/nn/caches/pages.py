"""A paged cache: tokens lie in pages of one pool, and each sequence has a table of its pages.

Sequences of different length take the pages they need, pages that nobody reads are used again, and sequences that begin
with the same prompt read the same pages (PagedAttention, Kwon et al. 2023). A page is copied when a sequence appends to
one of which another has used the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from .buffers import refuse_gradients

EMPTY, SCRATCH = 0, 1
"""The page that is read where a row has padding, all zeros; and the one that padding is written to."""


class PagePool:
    """Pages of `block` tokens, `data [kv_heads, pages, block, head_dim]`, with the number of readers of each.

    `filled` is how many tokens of a page are written. Pages without readers are free.
    """

    def __init__(self, x: Tensor, block: int) -> None:
        self.block = block
        self.readers, self.filled = [1, 1], [0, 0]
        self.free: list[int] = []
        self.data = x.new_zeros(x.shape[1], 2, block, x.shape[3])

    @property
    def used_pages(self) -> int:
        """The pages that are read by some sequence."""
        return len(self.readers) - 2 - len(self.free)

    @property
    def page_bytes(self) -> int:
        return self.data[:, 0].numel() * self.data.itemsize

    def take(self) -> int:
        """A free page, with one reader."""
        if not self.free:
            self.grow()
        page = self.free.pop()
        self.readers[page], self.filled[page] = 1, 0
        return page

    def grow(self) -> None:
        """Half as many pages more."""
        old = len(self.readers)
        more = max(16, old // 2)
        with torch.inference_mode(False):  # pages outlive the generation that makes them
            data = torch.zeros(
                self.data.shape[0], old + more, *self.data.shape[2:], dtype=self.data.dtype, device=self.data.device
            )
            data[:, :old] = self.data
        self.data = data
        self.readers += [0] * more
        self.filled += [0] * more
        self.free += range(old + more - 1, old - 1, -1)

    def copy(self, page: int, tokens: int) -> int:
        """A page with the first tokens of another."""
        fresh = self.take()
        self.data[:, fresh, :tokens] = self.data[:, page, :tokens]
        self.filled[fresh] = tokens
        return fresh

    def retain(self, pages: Iterable[int]) -> None:
        """Count one more reader of each page."""
        for page in pages:
            self.readers[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Count one reader less of each page; those without any are free."""
        for page in pages:
            self.readers[page] -= 1
            if not self.readers[page]:
                self.free.append(page)


class PagedBuffer:
    """Keys or values in pages. `table[b][n]` is the page of the tokens from n · block on of row b.

    `EMPTY` stands for pages of padding and for those that were dropped. `padding [batch]` counts the tokens before a
    row's first.
    """

    def __init__(self, pool: PagePool, table: list[list[int]], padding: list[int]) -> None:
        self.pool, self.table, self.padding = pool, table, padding

    @staticmethod
    def allocate(pool: PagePool, x: Tensor, padding: Tensor | None) -> PagedBuffer:
        """The tokens of x, in pages of the pool."""
        before = [0] * x.shape[0] if padding is None else padding.tolist()
        return PagedBuffer(pool, [[] for _ in before], before).append(x, 0, 0)[0]

    def __del__(self) -> None:
        self.pool.release(self.pages())

    def pages(self) -> Iterator[int]:
        """The pages of all rows; one that two rows share comes twice."""
        return (page for row in self.table for page in row if page > SCRATCH)

    def append(self, x: Tensor, start: int, end: int) -> tuple[PagedBuffer, int]:
        if torch.is_grad_enabled() and x.requires_grad:
            refuse_gradients("paged")
        whole = end + x.shape[2]
        rows = zip(self.table, self.padding, strict=True)
        table = [self.extend_row(row, padding, end, whole) for row, padding in rows]
        self.write(table, x, end)
        return PagedBuffer(self.pool, table, self.padding), start

    def extend_row(self, row: list[int], padding: int, end: int, whole: int) -> list[int]:
        """The pages of a row for tokens up to `whole`, with a reader more; no other row writes from `end` on."""
        pool = self.pool
        pool.retain(page for page in row if page > SCRATCH)
        row = list(row)
        part = end % pool.block
        if part and row[-1] > SCRATCH and pool.filled[row[-1]] != part:  # another sequence has used the rest
            shared, row[-1] = row[-1], pool.copy(row[-1], part)
            pool.release([shared])
        elif part and row[-1] <= SCRATCH and whole > padding:
            row[-1] = pool.take()
        for n in range(len(row), -(-whole // pool.block)):
            row.append(pool.take() if (n + 1) * pool.block > padding and whole > padding else EMPTY)
        for n in range(end // pool.block, len(row)):
            pool.filled[row[n]] = min(whole - n * pool.block, pool.block)
        return row

    def write(self, table: list[list[int]], x: Tensor, end: int) -> None:
        """Write x `[batch, kv_heads, tokens, head_dim]` to the places from `end` on."""
        block, places = self.pool.block, torch.arange(end, end + x.shape[2])
        first = end // block
        pages = torch.tensor([row[first:] for row in table])[:, places // block - first]
        pages = torch.where(pages == EMPTY, SCRATCH, pages).to(x.device)  # [batch, tokens]
        offsets = (places % block).to(x.device).expand_as(pages)
        self.pool.data[:, pages.flatten(), offsets.flatten()] = x.transpose(0, 1).flatten(1, 2)

    def keep(self, start: int, end: int) -> tuple[PagedBuffer, int]:
        """Pages that end before `start` are given back."""
        whole = start // self.pool.block
        table = [[EMPTY] * whole + row[whole:] for row in self.table]
        return self.share(table, self.padding), start

    def select(self, rows: Tensor, start: int, end: int) -> tuple[PagedBuffer, int]:
        """The same pages with more readers: nothing is copied."""
        index = rows.tolist()
        return self.share([list(self.table[b]) for b in index], [self.padding[b] for b in index]), start

    def share(self, table: list[list[int]], padding: list[int]) -> PagedBuffer:
        """A buffer that reads pages of this one."""
        shared = PagedBuffer(self.pool, table, padding)
        self.pool.retain(shared.pages())
        return shared

    def read(self, start: int, end: int) -> Tensor:
        block, data = self.pool.block, self.pool.data
        first = start // block
        table = torch.tensor([row[first : -(-end // block)] for row in self.table], device=data.device)
        x = data.index_select(1, table.flatten()).view(data.shape[0], len(self.table), -1, data.shape[3])
        return x.transpose(0, 1)[:, :, start - first * block : end - first * block]

    def error(self, start: int, end: int) -> float:
        return 0.0

    def allocations(self) -> Iterator[tuple[object, int]]:
        for page in self.pages():
            yield (id(self.pool), page), self.pool.page_bytes
