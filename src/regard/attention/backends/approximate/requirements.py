"""Which calls the approximate methods accept, and which of them their kernels run."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from ....errors import Unsupported
from ...call import Call
from ...parts.mask import And, Mask
from ...parts.masks import Everything, Lengths
from ...parts.part import Part
from ...parts.scores import Additive, Dot
from .. import triton

MAX_HEAD_DIM = 128  # of the methods' kernels
MAX_HEADS = 65536  # of all rows of the batch together, which the kernels do not reach


def count_real(method: Part, call: Call, why: str, *others: type[Mask]) -> tuple[Tensor | None, Tensor | None]:
    """How many keys and queries of each row are real, `[batch]` each, or None where all are.

    Raises `Unsupported` with the reason `why` for a mask that is not an `&` of `Lengths` and `others`.
    """
    masks = split_and(call.mask)
    for mask in masks:
        if not isinstance(mask, (Lengths, *others)):
            accepted = " and ".join(x.__name__ for x in (Lengths, *others))
            raise Unsupported(
                f"{type(method).__name__} cannot apply the mask {mask!r:.80}: {why}. It takes {accepted}; Exact() "
                "takes every mask."
            )
    lengths = [mask for mask in masks if isinstance(mask, Lengths)]
    queries = [x.queries for x in lengths if x.queries is not None]
    return shortest([x.keys for x in lengths], call.grid.keys), shortest(queries, call.grid.queries)


def split_and(mask: Mask) -> list[Mask]:
    """The masks that `mask` is the `&` of, without `Everything`."""
    if isinstance(mask, And):
        return split_and(mask.left) + split_and(mask.right)
    return [] if isinstance(mask, Everything) else [mask]


def shortest(counts: list[Tensor], tokens: int) -> Tensor | None:
    """The least of the counts, within 0 … tokens; None when there are none."""
    return functools.reduce(torch.minimum, counts).long().clamp(0, tokens) if counts else None


def check_dot_product(method: Part, call: Call, why: str) -> None:
    """Raise `Unsupported` unless the call is a dot product without a bias by distance and without dropout."""
    name = type(method).__name__
    if isinstance(call.score, Additive):
        raise Unsupported(
            f"{name} approximates the softmax of a dot product, and Additive is none. Use Dot, Bilinear or Cosine; "
            "Linformer and Exact() take Additive."
        )
    if call.dropout:
        raise Unsupported(
            f"{name} never forms the weights, so dropout ({call.dropout}) cannot be applied to them. Apply dropout to "
            "the output instead, or use Exact()."
        )
    check_no_distance(method, call, why)


def check_no_distance(method: Part, call: Call, why: str) -> None:
    """Raise `Unsupported` with the reason `why` when the position adds something by distance."""
    position = call.position
    if position is None or (position.rel_bias(call.q, call.k) is None and not position.count_vectors(call.q, call.k)):
        return
    raise Unsupported(
        f"{type(method).__name__} cannot add {type(position).__name__}, which depends on the distance: {why}. "
        "Use Rotary, which rotates q and k beforehand, or Exact()."
    )


def product_dtype(call: Call) -> torch.dtype:
    """The type of the operands of large products, whose sums are float32 at least.

    On a GPU bfloat16 stays. float16 does not: sums of keys and their inverses may leave its range.
    """
    half = call.v.dtype == call.q.dtype == torch.bfloat16 and call.q.is_cuda and isinstance(call.score, Dot | Additive)
    return call.v.dtype if half else call.exact


def plain_dot_product(call: Call) -> bool:
    """Whether the call is a dot product of q and k as they are, over all keys, in the type of its products."""
    plain = call.position is None and isinstance(call.mask, Everything) and not call.dropout
    return plain and isinstance(call.score, Dot) and product_dtype(call) == call.q.dtype


def fits_kernels(call: Call) -> bool:
    """Whether the methods' kernels take the call. A compiled graph uses the formulas, which the compiler fuses."""
    head_dim = max(call.q.shape[-1], call.k.shape[-1], call.v.shape[-1])
    dtype = product_dtype(call)
    fits = dtype == torch.float32 or (dtype == torch.bfloat16 and not triton.interpreting())
    fits = fits and head_dim <= MAX_HEAD_DIM and call.q.shape[0] * call.q.shape[1] < MAX_HEADS
    return fits and not torch.compiler.is_compiling() and triton.unsupported_device(call.q.device) is None
