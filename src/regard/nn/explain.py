"""Explanations from attention weights: rollout, norms of weighted values, gradient times attention.

Every function reads the views of `watch(model, weights=True)`, of the last call of each attention.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import BadInput, Unsupported
from .hooks.attentions import find_owner
from .hooks.watch import Record, Views

PROJECTIONS = ("out", "o", "o_proj", "out_proj", "c_proj", "out_lin", "dense", "proj", "wo")
"""Names of the output projection in common models."""


def rollout(views: Views, names: list[str] | None = None, *, residual: float = 0.5) -> Tensor:
    """Attention rollout: how much each output token depends on each input token, `[batch, tokens, tokens]`.

        A_l = residual · I + (1 − residual) · mean over heads of weights_l,   rows divided by their sums
        rollout = A_L · … · A_1

    (Abnar and Zuidema, 2020.) Rows sum to one. `names` are the layers, first to last; all by default. They must be
    self-attentions of one length. Raises `BadInput` where they are not, or where weights were not recorded.

    >>> import regard as rg
    >>> from regard.nn.hooks.watch import watch
    >>> model = rg.nn.Stack(rg.nn.StackConfig(dim=8, layers=2, heads=2, mask="Causal()"))
    >>> with watch(model, weights=True) as views:
    ...     y = model(torch.randn(1, 5, 8))
    >>> rollout(views)[0, 0].tolist()
    [1.0, 0.0, 0.0, 0.0, 0.0]
    """
    flow: Tensor | None = None
    for name in list(views) if names is None else names:
        mean = weights_of(views, name).mean(1)  # [batch, tokens, tokens]
        if mean.shape[1] != mean.shape[2] or (flow is not None and flow.shape != mean.shape):
            raise BadInput(
                f"{name!r} has {mean.shape[1]} queries and {mean.shape[2]} keys; rollout follows attentions of the "
                "same tokens to themselves. Choose them: rollout(views, names=[...])."
            )
        same = torch.eye(mean.shape[1], dtype=mean.dtype, device=mean.device)
        mixing = residual * same + (1 - residual) * mean
        mixing = mixing / mixing.sum(-1, keepdim=True).clamp(min=torch.finfo(mean.dtype).tiny)
        flow = mixing if flow is None else mixing @ flow
    if flow is None:
        raise BadInput("No attention was seen: there is nothing to roll out. Run the model inside `with watch(...)`.")
    return flow


def value_norms(views: Views, out: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The norms of the weighted values, by attention: `[batch, heads, queries, keys]`.

        norm(h, i, j) = ‖weight(h, i, j) · v(h, j) · W_h‖,   W_h the rows of the output projection that read head h

    (Kobayashi et al., 2020: a large weight on a short vector contributes little.) `out` gives output projections
    `[dim, heads · value dim]` by attention where a model has unusual names for them. Raises `BadInput` where none is
    found or weights were not recorded.

    >>> import regard as rg
    >>> from regard.nn.hooks.watch import watch
    >>> layer = rg.nn.MultiHeadAttention(dim=8, heads=2)
    >>> with watch(layer, weights=True) as views:
    ...     y = layer(torch.randn(1, 3, 8), torch.randn(1, 5, 8))
    >>> value_norms(views)["attend"].shape
    torch.Size([1, 2, 3, 5])
    """
    return {name: value_norm(views, name, (out or {}).get(name)) for name in views}


def value_norm(views: Views, name: str, projection: Tensor | None) -> Tensor:
    weights, values = weights_of(views, name), values_of(views, name)
    projection = output_projection(views.model, name) if projection is None else projection
    heads, width = values.shape[1], values.shape[3]
    if projection.dim() != 2 or projection.shape[1] != heads * width:
        raise BadInput(
            f"{name}: the output projection is {list(projection.shape)}; it must be [dim, heads · value dim] = "
            f"[dim, {heads * width}]."
        )
    by_head = projection.detach().to(values.dtype).unflatten(1, (heads, width)).transpose(0, 1)
    triangle = torch.linalg.qr(by_head, mode="r").R  # [heads, ≤ value dim, value dim]; Q does not change norms
    length = (values @ triangle.mT).norm(dim=-1)  # [batch, heads, keys]
    return weights * length[:, :, None]


def gradient_times_attention(views: Views) -> dict[str, Tensor]:
    """Each weight times its gradient of the scalar that backward was called on: `[batch, heads, queries, keys]`.

        result(h, i, j) = weight(h, i, j) · ∂L/∂weight(h, i, j),   ∂L/∂weight(h, i, j) = ∂L/∂output(h, i) · v(h, j)

    Only the gradient of attention's output is needed, so the model itself forms no weights. Attentions that L does not
    depend on are left out. Raises `BadInput` without gradients, `Unsupported` under attention dropout.

    >>> import regard as rg
    >>> from regard.nn.hooks.watch import watch
    >>> layer = rg.nn.MultiHeadAttention(dim=8, heads=2)
    >>> with watch(layer, weights=True) as views:
    ...     layer(torch.randn(1, 5, 8)).square().sum().backward()
    >>> gradient_times_attention(views)["attend"].shape
    torch.Size([1, 2, 5, 5])
    """
    with_gradient = [name for name in views if last_record(views, name).gradient is not None]
    if not with_gradient:
        raise BadInput(
            "There are no gradients: run the model inside `with watch(model, weights=True)` with gradients enabled, "
            "then call backward on a scalar of its output."
        )
    return {name: weights_of(views, name) * weight_gradient(views, name) for name in with_gradient}


def weight_gradient(views: Views, name: str) -> Tensor:
    """∂L/∂weight, `[batch, heads, queries, keys]`."""
    record = last_record(views, name)
    if record.dropout:
        raise Unsupported(
            f"{name}: the call dropped {record.dropout} of its weights, and does not record which. Call model.eval()."
        )
    values = values_of(views, name)
    if record.gradient is None:
        raise BadInput(f"{name} has no gradient. Call backward on a scalar of the output first.")
    return record.gradient.to(values.dtype) @ values.mT


def last_record(views: Views, name: str) -> Record:
    views[name]  # raises for a name without calls
    return views.records[name][-1]


def weights_of(views: Views, name: str) -> Tensor:
    """The weights of the last call, `[batch, heads, queries, keys]`."""
    weights = last_record(views, name).view.weights
    if weights is None:
        raise BadInput(f"The weights of {name!r} were not recorded. Ask for them: watch(model, weights=True).")
    return weights


def values_of(views: Views, name: str) -> Tensor:
    """The values of the last call, with a head for each head of the queries, in the weights' type."""
    weights, values = weights_of(views, name), last_record(views, name).values
    if values is None:
        raise BadInput(f"The values of {name!r} were not recorded. Ask for them: watch(model, weights=True).")
    group = weights.shape[1] // values.shape[1]
    return values.to(weights.dtype).repeat_interleave(group, dim=1)


def output_projection(model: nn.Module, name: str) -> Tensor:
    """The weight `[dim, heads · value dim]` of the layer after the heads."""
    module = find_owner(model, name)
    parent = model.get_submodule(name.rpartition(".")[0])
    sibling = getattr(getattr(parent, "output", None), "dense", None)  # BERT's is next to the attention
    for layer in (*(getattr(module, known, None) for known in PROJECTIONS), sibling):
        if isinstance(layer, nn.Linear):
            return layer.weight
        if type(layer).__name__ == "Conv1D" and isinstance(layer, nn.Module):  # GPT-2's is transposed
            return layer.get_parameter("weight").T
    raise BadInput(
        f"{name}: no output projection was found. Give its weight: value_norms(views, out={{{name!r}: ...}})."
    )
