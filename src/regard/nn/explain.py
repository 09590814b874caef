"""What can be concluded from weights that were watched: how they flow, how far they carry, what they are worth.

Every function reads what `watch(model, weights=True)` has seen, its last call of each attention.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import BadInput, Unsupported
from .hooks.attentions import find_owner
from .hooks.watch import Record, Views

PROJECTIONS = ("out", "o", "o_proj", "out_proj", "c_proj", "out_lin", "dense", "proj", "wo")
"""What models call the layer that joins the heads."""


def rollout(seen: Views, names: list[str] | None = None, *, residual: float = 0.5) -> Tensor:
    """How much of each input token is in each output token, `[batch, tokens, tokens]`; rows sum to one.

        A_l = residual · I + (1 − residual) · mean over heads of weights_l,   rows divided by their sums
        rollout = A_L · … · A_1

    (Abnar and Zuidema, 2020.) `names` choose the layers, first to last: all that were seen unless given. They must be
    attentions of the tokens to themselves, all of one length. Raises `BadInput` where they are not, or where weights
    were not asked for.

    >>> import regard as rg
    >>> from regard.nn.hooks.watch import watch
    >>> model = rg.nn.Stack(rg.nn.StackConfig(dim=8, layers=2, heads=2, mask="Causal()"))
    >>> with watch(model, weights=True) as seen:
    ...     y = model(torch.randn(1, 5, 8))
    >>> rollout(seen)[0, 0].tolist()
    [1.0, 0.0, 0.0, 0.0, 0.0]
    """
    flow: Tensor | None = None
    for name in list(seen) if names is None else names:
        mean = weights_of(seen, name).mean(1)  # [batch, tokens, tokens]
        if mean.shape[1] != mean.shape[2] or (flow is not None and flow.shape != mean.shape):
            raise BadInput(
                f"{name!r} has {mean.shape[1]} queries and {mean.shape[2]} keys; rollout follows attentions of the "
                "same tokens to themselves. Choose them: rollout(seen, names=[...])."
            )
        same = torch.eye(mean.shape[1], dtype=mean.dtype, device=mean.device)
        mixing = residual * same + (1 - residual) * mean
        mixing = mixing / mixing.sum(-1, keepdim=True).clamp(min=torch.finfo(mean.dtype).tiny)
        flow = mixing if flow is None else mixing @ flow
    if flow is None:
        raise BadInput("No attention was seen, so nothing can be rolled out. Run the model inside `with watch(...)`.")
    return flow


def value_norms(seen: Views, out: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """How long the vector is that each key adds to each query, by attention: `[batch, heads, queries, keys]`.

        norm(h, i, j) = ‖weight(h, i, j) · v(h, j) · W_h‖,   W_h the rows of the output projection that read head h

    (Kobayashi and others, 2020: a large weight on a short vector says little.) `out` gives projections
    `[dim, heads · value dim]` by attention where a model calls them otherwise than usual. Raises `BadInput` where none
    is found or weights were not asked for.

    >>> import regard as rg
    >>> from regard.nn.hooks.watch import watch
    >>> layer = rg.nn.MultiHeadAttention(dim=8, heads=2)
    >>> with watch(layer, weights=True) as seen:
    ...     y = layer(torch.randn(1, 3, 8), torch.randn(1, 5, 8))
    >>> value_norms(seen)["attend"].shape
    torch.Size([1, 2, 3, 5])
    """
    return {name: value_norm(seen, name, (out or {}).get(name)) for name in seen}


def value_norm(seen: Views, name: str, projection: Tensor | None) -> Tensor:
    weights, values = weights_of(seen, name), values_of(seen, name)
    projection = output_projection(seen.model, name) if projection is None else projection
    heads, width = values.shape[1], values.shape[3]
    if projection.dim() != 2 or projection.shape[1] != heads * width:
        raise BadInput(
            f"{name}: the output projection is {list(projection.shape)}; it must be [dim, heads · value dim] = "
            f"[dim, {heads * width}]."
        )
    by_head = projection.detach().to(values.dtype).unflatten(1, (heads, width)).transpose(0, 1)
    triangle = torch.linalg.qr(by_head, mode="r").R  # [heads, ≤ value dim, value dim]; lengths survive a rotation
    length = (values @ triangle.mT).norm(dim=-1)  # [batch, heads, keys]
    return weights * length[:, :, None]


def gradient_times_attention(seen: Views) -> dict[str, Tensor]:
    """What each weight is worth to the scalar that backward was called on: `[batch, heads, queries, keys]`.

        worth(h, i, j) = weight(h, i, j) · ∂L/∂weight(h, i, j),   ∂L/∂weight(h, i, j) = ∂L/∂output(h, i) · v(h, j)

    Only the gradient of attention's output is needed, so the pass itself keeps no square of weights. Attentions that L
    does not depend on are left out. Raises `BadInput` where no gradient came by, `Unsupported` under attention dropout.

    >>> import regard as rg
    >>> from regard.nn.hooks.watch import watch
    >>> layer = rg.nn.MultiHeadAttention(dim=8, heads=2)
    >>> with watch(layer, weights=True) as seen:
    ...     layer(torch.randn(1, 5, 8)).square().sum().backward()
    >>> gradient_times_attention(seen)["attend"].shape
    torch.Size([1, 2, 5, 5])
    """
    reached = [name for name in seen if last_record(seen, name).gradient is not None]
    if not reached:
        raise BadInput(
            "No gradient has come by: run the model inside `with watch(model, weights=True)` with gradients enabled, "
            "then call backward on a scalar of its output."
        )
    return {name: weights_of(seen, name) * weight_gradient(seen, name) for name in reached}


def weight_gradient(seen: Views, name: str) -> Tensor:
    """∂L/∂weight, `[batch, heads, queries, keys]`."""
    record = last_record(seen, name)
    if record.dropout:
        raise Unsupported(
            f"{name}: the call dropped {record.dropout} of its weights, and which is not known. Call model.eval()."
        )
    values = values_of(seen, name)
    return record.gradient.to(values.dtype) @ values.mT  # type: ignore[union-attr]


def last_record(seen: Views, name: str) -> Record:
    seen[name]  # raises where there is none
    return seen.records[name][-1]


def weights_of(seen: Views, name: str) -> Tensor:
    """The weights of the last call, `[batch, heads, queries, keys]`."""
    weights = last_record(seen, name).view.weights
    if weights is None:
        raise BadInput(f"The weights of {name!r} were not kept. Ask for them: watch(model, weights=True).")
    return weights


def values_of(seen: Views, name: str) -> Tensor:
    """The values of the last call, one head for each of the queries', in the weights' type."""
    weights, values = weights_of(seen, name), last_record(seen, name).values
    group = weights.shape[1] // values.shape[1]  # type: ignore[union-attr]
    return values.to(weights.dtype).repeat_interleave(group, dim=1)  # type: ignore[union-attr]


def output_projection(model: nn.Module, name: str) -> Tensor:
    """The weight `[dim, heads · value dim]` of the layer that joins the heads."""
    module = find_owner(model, name)
    parent = model.get_submodule(name.rpartition(".")[0])
    beside = getattr(getattr(parent, "output", None), "dense", None)  # BERT keeps it next to the attention
    for layer in (*(getattr(module, known, None) for known in PROJECTIONS), beside):
        if isinstance(layer, nn.Linear):
            return layer.weight
        if type(layer).__name__ == "Conv1D":  # GPT-2's is a matrix the other way round
            return layer.weight.T  # type: ignore[union-attr]
    raise BadInput(
        f"{name}: no output projection was found. Give its weight: value_norms(seen, out={{{name!r}: ...}})."
    )
