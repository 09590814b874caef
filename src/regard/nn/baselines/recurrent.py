"""The recurrent baseline: RNN, GRU or LSTM, with or without attention over the states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ...attention.parts.mask import Mask
from ...attention.parts.masks import Causal
from ...attention.parts.scores import Score
from ...errors import BadInput, Unsupported
from ..activations import NORMS, choose
from ..attention import Attend, EncoderOutput, divide_heads, intersect, merge_heads, split_heads
from ..block import padding_mask
from ..cache import Cache
from ..old_names import accept_old_names
from ..packing import zero_padding
from ..parts.config import build_part
from ..pooling import SCORES, Mean
from .residual_attention import add_positions, check_memory, real_tokens_of_call

CELLS: dict[str, type[nn.RNN | nn.GRU | nn.LSTM]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}

State = tuple[Tensor, ...]
"""(h,) or the LSTM's (h, c), each `[batch, layers · directions, hidden]`."""


@accept_old_names(kind="cell")
@dataclass(frozen=True)
class RecurrentConfig:
    """See `Recurrent`."""

    dim: int
    layers: int
    cell: Literal["rnn", "gru", "lstm"] = "gru"
    bidirectional: bool = False
    dropout: float = 0.0
    attention: Literal["dot", "additive"] | None = None
    heads: int = 1
    cross: bool = False
    norm: Literal["layer", "rms"] | None = None

    def build(self) -> Recurrent:
        return Recurrent(**vars(self))

    @property
    def causal(self) -> bool:
        """Whether no token sees a later one."""
        return not self.bidirectional


@accept_old_names(kind="cell")
class Recurrent(nn.Module):
    """A recurrent network, a baseline for attention: h_t = cell(h_{t−1}, x_t), layer after layer.

    As a decoder (`cross`) it reads a memory. Without attention that is the memory's mean, which initialises the states
    and is added at every token, since at first a state loses about half of its content with each token:

        h_0 = tanh(W · mean(memory)),   y_t = h_t + V · mean(memory)

    With attention, "dot" (Luong) or "additive" (Bahdanau), each state attends to the memory; without `cross`, to the
    earlier states (to all, when bidirectional):

        c_t = attend(query(h_t), key(s), s),   y_t = tanh(mix([c_t; h_t])),   s = memory or h

    `norm` is applied to the last layer's h_t, or to the output of attention. The gates leave an LSTM's states small,
    0.04 where the tokens of other layers are 1, and a head tied to the embedding would train slowly.

    `[batch, tokens, dim]` in and out; each of two directions has dim / 2. Padding does not change the output. Through a
    cache it runs token by token.

    >>> Recurrent(dim=8, layers=2, cell="lstm", attention="additive")(torch.randn(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    """

    def __init__(
        self,
        dim: int,
        layers: int,
        cell: Literal["rnn", "gru", "lstm"] = "gru",
        *,
        bidirectional: bool = False,
        dropout: float = 0.0,
        attention: Literal["dot", "additive"] | None = None,
        heads: int = 1,
        cross: bool = False,
        norm: Literal["layer", "rms"] | None = None,
    ) -> None:
        super().__init__()
        check_settings(cell, attention, bidirectional, cross)
        self.dim, self.cell, self.bidirectional, self.cross = dim, cell, bidirectional, cross
        hidden = divide_heads(dim, 2) if bidirectional else dim
        self.cells = CELLS[cell](
            dim,
            hidden,
            layers,
            batch_first=True,
            dropout=dropout if layers > 1 else 0.0,
            bidirectional=bidirectional,
        )
        self.look = StateAttention(dim, heads, SCORES[attention]) if attention else None
        self.start = nn.Linear(dim, self.states * layers * dim) if cross and not attention else None
        self.read = nn.Linear(dim, dim) if cross and not attention else None
        self.norm = choose(norm, NORMS, "norm")(dim, eps=1e-5) if norm else None
        self.mean = Mean()

    @property
    def states(self) -> int:
        return 2 if self.cell == "lstm" else 1

    @property
    def causal(self) -> bool:
        """Whether no token sees a later one."""
        return not self.bidirectional

    def forward(
        self,
        x: Tensor,
        *,
        lengths: Tensor | None = None,
        memory: EncoderOutput | Tensor | None = None,
        cache: Cache | None = None,
        position_embedding: Tensor | None = None,
    ) -> Tensor:
        """`[batch, tokens, dim]`: the last layer's states, or the output of attention, zero in the padding."""
        memory = check_memory(memory, self.cross, "Recurrent")
        x = add_positions(x, self.dim, position_embedding)
        if cache is not None and self.bidirectional:
            raise Unsupported(
                "A bidirectional Recurrent needs all tokens and cannot run token by token. Leave out the cache."
            )
        real = real_tokens_of_call(x, lengths, cache)
        mean = self.mean(memory.x, memory.lengths) if memory is not None and self.look is None else None
        y, state = self.run_cells(x, real, self.initial_state(x, mean, cache))
        if cache is not None:
            cache.put("recurrent.state", state)
        if self.look is not None:
            own = None if self.bidirectional else Causal()
            mask = memory.key_mask if memory is not None else intersect(own, padding_mask(lengths, cache, x.shape[1]))
            y = self.look(y, memory, mask, cache)
        y = y if self.norm is None else self.norm(y)
        if mean is not None and self.read is not None:
            y = y + self.read(mean)[:, None]
        return zero_padding(y, real)

    def initial_state(self, x: Tensor, mean: Tensor | None, cache: Cache | None) -> State:
        """The state before the first token of this call: from the cache, from the memory's mean, or zeros."""
        before: State | None = None if cache is None else cache.get("recurrent.state", tuple)
        if before is not None:
            return before
        if mean is not None and self.start is not None:
            start = self.start(mean).tanh()
            return start.unflatten(1, (self.states, -1, self.dim)).unbind(1)
        cells = self.cells
        zeros = x.new_zeros(x.shape[0], cells.num_layers * (1 + self.bidirectional), cells.hidden_size)
        return (zeros,) * self.states

    def run_cells(self, x: Tensor, real: Tensor | None, state: State) -> tuple[Tensor, State]:
        """All states of the last layer, zero in the padding, and the final state of every layer."""
        if real is None or not x.numel():
            h, after = self.cells(x, self.to_cell_state(state)) if x.numel() else (x, self.to_cell_state(state))
            return h, self.from_cell_state(after)
        counts, first = real.sum(1), real.long().argmax(1)
        shift = (torch.arange(x.shape[1], device=x.device) + first[:, None]) % x.shape[1]  # [batch, tokens]
        rows = pack_padded_sequence(gather_tokens(x, shift), counts.clamp(min=1).cpu(), True, enforce_sorted=False)
        h, after = self.cells(rows, self.to_cell_state(state))
        h = gather_tokens(pad_packed_sequence(h, True, total_length=x.shape[1])[0], shift.argsort(1))
        empty = (counts == 0)[:, None, None]
        after = tuple(torch.where(empty, old, new) for old, new in zip(state, self.from_cell_state(after), strict=True))
        return zero_padding(h, real), after

    def to_cell_state(self, state: State) -> Tensor | tuple[Tensor, Tensor]:
        """The state as torch's cells take it, with the layers first."""
        states = tuple(part.transpose(0, 1).contiguous() for part in state)
        return (states[0], states[1]) if self.cell == "lstm" else states[0]

    def from_cell_state(self, state: Tensor | tuple[Tensor, ...]) -> State:
        """The state with the batch first, so that a cache can select rows."""
        states = state if isinstance(state, tuple) else (state,)
        return tuple(part.transpose(0, 1) for part in states)


class StateAttention(nn.Module):
    """tanh(mix([c_t; h_t])) with c_t = attend(query(h_t), key(s), s), and s the memory or h itself."""

    def __init__(self, dim: int, heads: int, score: Score) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.mix = nn.Linear(2 * dim, dim)
        self.score = build_part(score, heads, divide_heads(dim, heads))
        self.attend = Attend()

    def forward(self, h: Tensor, memory: EncoderOutput | None, mask: Mask | None, cache: Cache | None) -> Tensor:
        k, v = self.state_keys_and_values(h, cache) if memory is None else self.memory_keys_and_values(memory.x, cache)
        context = merge_heads(self.attend(split_heads(self.query(h), self.heads), k, v, score=self.score(), mask=mask))
        return self.mix(torch.cat([context, h], -1)).tanh()

    def state_keys_and_values(self, h: Tensor, cache: Cache | None) -> tuple[Tensor, Tensor]:
        """Keys and values of the states so far."""
        k, v = split_heads(self.key(h), self.heads), split_heads(h, self.heads)
        return (k, v) if cache is None else cache.extend("recurrent.own", k, v)

    def memory_keys_and_values(self, x: Tensor, cache: Cache | None) -> tuple[Tensor, Tensor]:
        """Keys and values of a memory, computed once for all the steps that share a cache."""
        cached = None if cache is None else cache.get("recurrent.memory", tuple)
        k, v = cached or (split_heads(self.key(x), self.heads), split_heads(x, self.heads))
        if cache is not None and cached is None:
            cache.put("recurrent.memory", (k, v))
        return k, v


def gather_tokens(x: Tensor, positions: Tensor) -> Tensor:
    """The tokens of x `[batch, tokens, dim]` at `positions [batch, tokens]`."""
    return x.gather(1, positions[..., None].expand(-1, -1, x.shape[2]))


def check_settings(cell: str, attention: str | None, bidirectional: bool, cross: bool) -> None:
    if cell not in CELLS:
        raise BadInput(f"Recurrent's cell is {cell!r}; it must be one of {', '.join(CELLS)}.")
    if attention is not None and attention not in SCORES:
        raise BadInput(f"Recurrent's attention is {attention!r}; it must be None, 'dot' or 'additive'.")
    if bidirectional and cross:
        raise BadInput("A bidirectional Recurrent cannot be a decoder. Use bidirectional=False or cross=False.")
