"""Hugging Face models through Regard: importing this registers the attention `"regard"` with transformers.

    import regard.integrations.transformers
    model = AutoModel.from_pretrained(folder, attn_implementation="regard")

Every attention of such a model is a `regard.attend`, so `regard.watch` and `regard.edit` work on it under the names
of its own modules. Masks are passed as parts (`Causal`, `Window`, `Lengths`, `Documents`): no tensor of queries ×
keys is made unless the model itself makes it.

Inside `with layout:` (`regard.shard`) a model runs on this rank's tokens of a sequence, if it hands positions to its
attention: call it with `input_ids=layout.split(ids, 1)` and `position_ids=layout.places()[None]`.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..attention.attend import attend
from ..attention.convert import causal_from_start, from_hugging_face
from ..attention.interception import INTERCEPTORS
from ..attention.look import look
from ..attention.parts.mask import Mask
from ..attention.parts.masks import Causal, Documents, Everything, Lengths, Pairs, Window
from ..attention.parts.pair_bias import PairBias
from ..attention.parts.positions import Bias
from ..attention.parts.scores import Dot
from ..attention.parts.sink import Sink
from ..attention.sharding import SequenceLayout, check_tokens, current_layout
from ..errors import BadInput, Missing, Unsupported
from ..nn.hooks.attentions import EXTERNAL_MODULES, external_attend

try:
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel, masking_utils
except ImportError as error:
    raise Missing(
        f"Hugging Face models need transformers 5 or later ({error}). Install it: pip install 'transformers>=5'."
    ) from None

NAME = "regard"
TABLE = "ALL_ATTENTION_FUNCTIONS"  # in which transformers' modules look up their attention
REFUSED = {"cache": "runs on a paged cache (continuous batching)"}
ADDS_MASKS = ("bigbird_pegasus",)
"""Families of which some layers add the mask to their scores themselves, and which therefore need numbers."""

EXTENDS_MASKS = ("deepseek_v4",)
"""Families that append what is added to the scores of further keys to the mask, which therefore is of numbers too."""


class LazyMask(Tensor):
    """A mask part with the type of transformers' boolean `[batch, 1, queries, keys]`, without its memory.

    `keys` is the number of keys that can be visible: a static cache is empty beyond. `compared` says that the ranks of
    a layout have compared the positions of the model's call. Computing with it materializes it; added to scores, as the
    encoder of BigBird-Pegasus does it, it is 0 where a pair is allowed and the lowest number elsewhere.
    """

    part: Mask
    keys: int
    compared: bool

    @staticmethod
    def __new__(cls, part: Mask, keys: int, shape: tuple[int, ...], device: torch.device | str) -> LazyMask:
        mask = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)  # type: ignore[attr-defined]
        mask.part, mask.keys, mask.compared = part, keys, False
        return mask

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        scores = [x for x in args if isinstance(x, Tensor) and x.is_floating_point()]
        if scores and function.overloadpacket is torch.ops.aten.add:
            dtype = scores[0].dtype
            args = tuple(x.additive(dtype) if isinstance(x, LazyMask) else x for x in args)
        return function(*materialize(args), **materialize(kwargs or {}))

    def __repr__(self) -> str:  # type: ignore[override]
        return f"LazyMask({self.part!r}, keys={self.keys}, shape={list(self.shape)})"

    def dense(self) -> Tensor:
        """The mask as a tensor, `[batch, 1, queries, keys]`."""
        allowed = self.part.dense(self.shape[2], self.keys).to(self.device)
        allowed = allowed.expand(self.shape[0], 1, -1, -1)
        return torch.nn.functional.pad(allowed, (0, self.shape[3] - self.keys))

    def additive(self, dtype: torch.dtype) -> Tensor:
        """What is added to scores of that type, `[batch, 1, queries, keys]`."""
        return added_mask(self.dense(), dtype)


def added_mask(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as numbers that are added to scores: 0 where a pair is allowed, the lowest number elsewhere."""
    zeros = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return zeros.masked_fill(~allowed, torch.finfo(dtype).min)


def materialize(value: Any) -> Any:
    """The value with every `LazyMask` in it as a tensor."""
    if isinstance(value, LazyMask):
        return value.dense()
    if isinstance(value, list | tuple):
        return type(value)(materialize(item) for item in value)
    return {key: materialize(item) for key, item in value.items()} if isinstance(value, dict) else value


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    indices: Tensor | None = None,
    block_indices: Tensor | None = None,
    **others: object,
) -> tuple[Tensor, Tensor | None]:
    """transformers' attention function: the output `[batch, queries, heads, value dim]`, and the weights.

    query, key, value are `[batch, heads or kv_heads, tokens, head_dim]`. Weights (without gradient) are returned
    when the model is called with `output_attentions=True`; None otherwise. `softcap` is a cap on scores (Gemma 2),
    `s_aux [heads]` the logits of sinks (gpt-oss), `indices [batch, queries, selected]` the only keys of each query
    (DeepSeek-V3.2), `block_indices [batch, kv_heads, queries, selected]` its only blocks of keys (MiniMax M3). Raises
    `Unsupported` for options that Regard has no part for.
    """
    check_options(module, others)
    layout = current_layout()
    if layout is not None:
        compare_positions(module, layout, others, position_bias, attention_mask)
    # Masks of causal models arrive as parts. Without one eager attends to every key, whatever the module's attribute
    # `is_causal` says: BridgeTower sets it for its layers over images too.
    try:
        mask, bias, keys = read_mask(attention_mask, query, key, bool(is_causal))
    except BadInput as error:
        raise BadInput(
            f"{type(module).__name__}: {error} Or load the model with attn_implementation='eager'."
        ) from None
    if indices is not None or block_indices is not None:
        selected = (
            read_indices(indices, key)
            if indices is not None
            else read_blocks(module, block_indices, query, key, mask, others.get("position_ids"))
        )
        mask = intersect_masks([*([] if mask is None else [mask]), Pairs(selected[..., :keys])])
    if keys < key.shape[2]:
        key, value = key[:, :, :keys], value[:, :, :keys]
    usual = softcap is None and (scaling is None or scaling == query.shape[-1] ** -0.5)
    score = None if usual else Dot(None if scaling is None else float(scaling), cap=softcap)
    position = None if position_bias is None else read_bias(position_bias[..., :keys], query.shape[1])
    if isinstance(position, PairBias):
        position, bias = None, position if bias is None else PairBias(position.bias + bias.bias)
    sink = None if s_aux is None else Sink(s_aux.flatten())
    parts: dict[str, Any] = {"score": score, "position": position, "mask": mask, "sink": sink, "bias": bias}
    parts = {name: part for name, part in (parts | {"layout": layout}).items() if part is not None}
    # hooks are on the module's `Attend`, and only while something is watched or edited; a compiled graph runs none
    run = external_attend(module) if INTERCEPTORS and not torch.compiler.is_compiling() else attend
    output = run(query, key, value, **parts, dropout=dropout)
    weights = None
    if others.get("output_attentions") or records_attentions():
        weights = look(query, key, value, **parts, weights=True).weights
    return output.transpose(1, 2).contiguous(), weights


def records_attentions() -> bool:
    """Whether a model records the weights of its attentions, without passing `output_attentions` on to them."""
    collector = getattr(sys.modules.get("transformers.utils.output_capturing"), "_active_collector", None)
    if collector is None or torch.compiler.is_compiling():
        return False
    recorded = collector.get()
    return bool(recorded) and any(name.endswith("attentions") for name in recorded)


def check_options(module: nn.Module, others: Mapping[str, object]) -> None:
    for option, fault in REFUSED.items():
        if others.get(option) is not None:
            raise Unsupported(
                f"{type(module).__name__} {fault}, for which Regard has no part. Load the model with "
                "attn_implementation='eager'."
            )


def compare_positions(
    module: nn.Module,
    layout: SequenceLayout,
    others: Mapping[str, object],
    position_bias: Tensor | None,
    attention_mask: Tensor | None,
) -> None:
    """Raise on every rank unless each has the positions of its tokens: once for a mask, which a call makes anew."""
    lazy = attention_mask if isinstance(attention_mask, LazyMask) else None
    if lazy is not None and lazy.compared:
        return
    layout.check_ranks(lambda: check_sharded(module, layout, others, position_bias))
    if lazy is not None:
        lazy.compared = True


def check_sharded(
    module: nn.Module, layout: SequenceLayout, others: Mapping[str, object], position_bias: Tensor | None
) -> None:
    """Raise unless a module's tokens are those of this rank, by the positions that the model was called with."""
    name, positions = type(module).__name__, others.get("position_ids")
    if position_bias is not None or not isinstance(positions, Tensor):
        raise Unsupported(
            f"{name} does not hand positions to its attention, so it does not run sharded; models with rotary "
            "positions such as Llama do."
        )
    own = layout.places().to(positions.device)
    if positions.shape[-1] != len(own) or not torch.equal(positions, own.expand_as(positions)):
        raise BadInput(
            f"{name}: position_ids are not those of rank {layout.rank}. Inside `with layout:` call the model with "
            "input_ids=layout.split(ids, 1) and position_ids=layout.places()[None]."
        )


def read_mask(given: Tensor | None, q: Tensor, k: Tensor, causal: bool) -> tuple[Mask | None, PairBias | None, int]:
    """The mask as a part, numbers for pairs that a model adds with it, and the number of its keys."""
    queries, keys = q.shape[2], k.shape[2]
    if isinstance(given, LazyMask) and given.shape[2:] == (queries, keys):
        return given.part, None, given.keys
    if given is not None:
        pairs: Tensor = materialize(given)[..., :keys]
        if pairs.dtype == torch.bool and pairs.dim() == 4:
            return Pairs(pairs), None, keys
        if pairs.is_floating_point() and pairs.dim() == 4:
            return *split_added(pairs), keys
        return from_hugging_face(pairs), None, keys
    if not causal or queries == 1:
        return None, None, keys
    if queries <= keys:  # torch's causal mask starts at the first key: no query sees later ones
        return Causal(), None, queries
    return causal_from_start(queries, keys).to(q.device), None, keys


def read_indices(indices: Tensor, k: Tensor) -> Tensor:
    """The selected keys of each query, `[batch, 1, queries, keys]`, from their numbers `[batch, queries, selected]`."""
    none = torch.zeros(*indices.shape[:2], k.shape[2], dtype=torch.bool, device=k.device)
    return none.scatter(-1, indices.long(), True)[:, None]


def read_blocks(module: Any, blocks: Tensor | None, q: Tensor, k: Tensor, mask: Mask | None, places: Any) -> Tensor:
    """The keys in the selected blocks of each query, `[batch, heads, queries, keys]`; their size is the indexer's."""
    places = torch.arange(k.shape[2] - q.shape[2], k.shape[2], device=q.device) if places is None else places
    real = None if mask is None else torch.ones(1, 1, 1, k.shape[2], dtype=torch.bool, device=q.device)
    places = places.expand(q.shape[0], -1)
    added: Tensor = module.indexer.build_block_mask(blocks, real, k.shape[2], q.dtype, q.device, places)
    return added > torch.finfo(added.dtype).min / 2


def split_added(added: Tensor) -> tuple[Mask | None, PairBias | None]:
    """The mask in a tensor that is added to the scores (numbers near the lowest one), and the bias in the rest."""
    allowed = added > torch.finfo(added.dtype).min / 2
    reads = not torch.compiler.is_compiling()  # a graph is of any numbers
    if reads and not added.requires_grad and not (added[allowed] != 0).any():
        return Pairs(allowed), None
    return Pairs(allowed), PairBias(added.masked_fill(~allowed, 0.0))


def read_bias(bias: Tensor, heads: int) -> Bias | PairBias | None:
    """The bias `[batch or 1, heads or 1, queries, keys]` as a part: by distance where it depends on that alone."""
    if not bias.requires_grad and not bias.any():
        return None
    table = bias[0]
    if (bias != table).any() or (table[:, 1:, 1:] != table[:, :-1, :-1]).any():
        return PairBias(bias)
    rising = torch.cat([table[:, 0].flip(-1), table[:, 1:, 0]], dim=-1)  # from the last key of the first query on
    return Bias(rising.expand(heads, -1), zero=table.shape[1] - 1)


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **others: object,
) -> Tensor | None:
    """transformers' mask function: a `LazyMask`, or a boolean tensor where no part is equal.

    A query has the position row + q_offset, a key column + kv_offset. In Regard queries are the last of the keys, so
    the keys after the last query (the empty end of a static cache) are left out.
    """
    make_tensor = functools.partial(
        masking_utils.sdpa_mask,
        batch_size,
        q_length,
        kv_length,
        q_offset,  # type: ignore[arg-type]
        kv_offset,
        mask_function,
        attention_mask,
        allow_is_causal_skip=False,
        use_vmap=use_vmap,
        device=device,
    )
    layout = current_layout()
    if layout is not None:
        part = compare_masks(layout, q_length, mask_function, attention_mask, batch_size, int(q_offset), device)
        return LazyMask(part, q_length, (batch_size, 1, q_length, q_length), device)
    family = getattr(others.get("config"), "model_type", None)
    if family in EXTENDS_MASKS:
        return added_mask(make_tensor(), others["dtype"])  # type: ignore[arg-type]
    # a step over a static cache may be compiled, and its mask is one row anyway
    if use_vmap or torch.compiler.is_compiling() or (isinstance(q_offset, Tensor) and q_length == 1):
        pairs = make_tensor()
        adds = family in ADDS_MASKS and pairs is not None
        return added_mask(pairs, others["dtype"]) if adds else pairs  # type: ignore[arg-type]
    check_dispatches(others.get("config"))
    bidirectional = mask_function is masking_utils.bidirectional_mask_function
    keys = kv_length if bidirectional else int(q_offset) - kv_offset + q_length
    part = convert_mask(mask_function, KeyRange(kv_offset, keys, device))
    if part is None or not 0 < keys <= kv_length or (keys < kv_length and not is_causal(mask_function)):
        return make_tensor()
    real = read_padding(attention_mask, batch_size, q_length, kv_offset, keys)
    if isinstance(part, Everything) and real is None and others.get("allow_is_bidirectional_skip"):
        return None
    return LazyMask(
        part if real is None else intersect_masks([part, real]), keys, (batch_size, 1, q_length, kv_length), device
    )


def compare_masks(layout: SequenceLayout, tokens: int, *arguments: Any) -> Mask:
    """The mask of the whole sequence; raises on every rank unless each has its tokens and can make it."""
    made: list[Mask] = []

    def make() -> None:
        check_tokens(layout, tokens)
        made.append(sharded_mask(layout, *arguments))

    layout.check_ranks(make)
    return made[0]


def sharded_mask(
    layout: SequenceLayout,
    function: Callable,
    attention_mask: Tensor | None,
    batch: int,
    offset: int,
    device: torch.device | str,
) -> Mask:
    """The mask of the whole sequence of which the model has this rank's tokens."""
    tokens, places = layout.tokens[0], layout.places().to(device)
    if offset:
        raise Unsupported("A cache of earlier tokens does not run sharded. Call the model with use_cache=False.")
    if attention_mask is not None and attention_mask.shape[1] != tokens:
        raise BadInput(
            f"attention_mask has {attention_mask.shape[1]} tokens; inside `with layout:` it is that of the whole "
            f"sequence, {tokens}."
        )
    # positions that jump from run to run look to transformers as if texts were packed
    jumps = (places.diff(prepend=places[:1] - 1) != 1).cumsum(0)
    inner = closure_variables(function).get("mask_functions", (function,))
    known: list[Mask] = []
    for predicate in inner:
        packed = closure_variables(predicate).get("packed_sequence_mask")
        if packed is not None and torch.equal(packed, jumps.expand_as(packed)):
            continue
        part = None if packed is not None else convert_mask(predicate, KeyRange(0, tokens, device))
        if part is None:
            raise Unsupported(f"The mask {predicate.__qualname__} does not run sharded. Call the model in one process.")
        known.append(part)
    real = read_padding(attention_mask, batch, tokens, 0, tokens)
    return intersect_masks([*known, *([] if real is None else [real])])


def check_dispatches(config: object) -> None:
    """Raise when a model computes its attention itself and ignores attn_implementation."""
    modeling = sys.modules.get(type(config).__module__.replace("configuration_", "modeling_"))
    if modeling is not None and modeling.__name__ != type(config).__module__ and not hasattr(modeling, TABLE):
        raise Unsupported(
            f"The models of {type(config).__name__} compute their attention themselves and ignore attn_implementation. "
            "Load the model with attn_implementation='eager'."
        )


class KeyRange(NamedTuple):
    """The keys of a mask: `keys` of them, from `first` on."""

    first: int
    keys: int
    device: torch.device | str

    def cut(self, x: Tensor) -> Tensor:
        """The columns of `[batch, tokens]` for these keys."""
        return x[:, self.first : self.first + self.keys]

    def chunks(self, size: int, padding: Tensor) -> Tensor:
        """The number of each key's chunk, counted after the row's padding, `[batch, keys]`."""
        positions = torch.arange(self.first, self.first + self.keys, device=self.device)
        return (positions - padding[:, None]) // size


def past_window(size: int, keys: int) -> Mask:
    """The last `size` tokens, the query's own included, and later ones; a window of 0 (Qwen2-MoE) allows none."""
    return Window(size - 1, keys) if size > 0 else ~Everything()


PARTS: dict[str, Callable[[Mapping[str, Any], KeyRange], Mask]] = {
    "causal_mask_function": lambda has, at: Causal(),
    "bidirectional_mask_function": lambda has, at: Everything(),
    "sliding_window_overlay.<locals>.inner_mask": lambda has, at: past_window(has["sliding_window"], at.keys),
    "sliding_window_bidirectional_overlay.<locals>.inner_mask": lambda has, at: Window(*[has["sliding_window"]] * 2),
    "chunked_overlay.<locals>.inner_mask": lambda has, at: Documents(at.chunks(has["chunk_size"], has["left_padding"])),
    "blockwise_overlay.<locals>.inner_mask": lambda has, at: Documents(at.cut(has["block_sequence_ids"])),
    "packed_sequence_mask_function.<locals>.inner_mask": lambda has, at: Documents(at.cut(has["packed_sequence_mask"])),
}
"""transformers' mask functions by name, and the equal part, from the variables that each closes over."""


def closure_variables(function: Callable) -> dict[str, Any]:
    """The variables that a function closes over, by name."""
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    return {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}


def convert_mask(function: Callable, at: KeyRange) -> Mask | None:
    """The part equal to a mask function of transformers; None for an unknown one."""
    name, has = function.__qualname__, closure_variables(function)
    if name in ("and_masks.<locals>.and_mask", "or_masks.<locals>.or_mask"):
        parts = [convert_mask(inner, at) for inner in has["mask_functions"]]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return functools.reduce(Mask.__or__, known) if name.startswith("or") else intersect_masks(known)
    return PARTS[name](has, at) if name in PARTS else None


def intersect_masks(parts: list[Mask]) -> Mask:
    """The intersection of the parts; a causal mask and a window become a window into the past."""
    past = [part for part in parts if isinstance(part, Window) and any(isinstance(x, Causal) for x in parts)]
    if past:
        parts = [Window(min(part.before for part in past)), *(x for x in parts if not isinstance(x, Window | Causal))]
    parts = [part for part in parts if not isinstance(part, Everything)] or [Everything()]
    return functools.reduce(Mask.__and__, parts)


def is_causal(function: Callable) -> bool:
    """Whether a mask function is causal."""
    inside = closure_variables(function).get("mask_functions", ())
    return function is masking_utils.causal_mask_function or any(is_causal(inner) for inner in inside)


def read_padding(real: Tensor | None, batch: int, queries: int, first: int, keys: int) -> Mask | None:
    """The mask of real keys, from `[batch, tokens]` (True for a real one); None when all are.

    A GPU is waited for once.
    """
    if real is None:
        return None
    device = real.device
    real = torch.nn.functional.pad(real.bool().cpu(), (0, max(first + keys - real.shape[1], 0)))
    real = real[:, first : first + keys].expand(batch, -1)
    if bool(real.all()):
        return None
    count, j = real.sum(1), torch.arange(keys)
    if torch.equal(real, j < count[:, None]):
        return Lengths(count.to(device))
    if torch.equal(real, j >= keys - count[:, None]):
        return ~Lengths((keys - count).to(device))
    ids = torch.where(real, 0, -1).to(device)
    return Documents(ids, torch.zeros(batch, queries, dtype=torch.long, device=device))


@functools.cache
def dispatches(module_type: type[nn.Module]) -> bool:
    """Whether modules of a class ask transformers' table for their attention."""
    own = [value for base in module_type.__mro__ for value in vars(base).values() if inspect.isfunction(value)]
    return any(TABLE in inspect.unwrap(function).__code__.co_names for function in own)


def uses_regard(module: nn.Module) -> bool:
    """Whether a module's attention is this one."""
    chosen = getattr(getattr(module, "config", None), "_attn_implementation", None)
    return chosen == NAME and not isinstance(module, PreTrainedModel) and dispatches(type(module))


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, mask)
EXTERNAL_MODULES.append(uses_regard)
