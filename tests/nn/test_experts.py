"""A mixture of experts computes the experts that tokens are routed to, and no others."""

from __future__ import annotations

import pytest
import torch

from regard.nn.experts import Experts, ExpertsConfig


def make_layer(count: int = 5, active: int = 2) -> Experts:
    torch.manual_seed(0)
    layer = Experts(8, 11, ExpertsConfig(count, active))
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


def rows_computed(layer: Experts, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """How many rows each expert computed."""
    rows: dict[int, int] = {}
    compute = layer.compute_expert

    def count(n: int, part: torch.Tensor) -> torch.Tensor:
        rows[n] = rows.get(n, 0) + part.shape[0]
        return compute(n, part)

    monkeypatch.setattr(layer, "compute_expert", count)
    layer(x)
    return rows


@pytest.mark.parametrize("training", [True, False])
def test_each_token_is_computed_by_its_experts_alone(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = make_layer().train(training), torch.randn(3, 7, 8)
    chosen = layer.router(x).topk(2, -1).indices.flatten().tolist()
    rows = rows_computed(layer, x, monkeypatch)
    assert rows == {n: chosen.count(n) for n in set(chosen)} and sum(rows.values()) == 3 * 7 * 2


def test_experts_without_tokens_are_not_read() -> None:
    """NaN in an expert that no token is routed to reaches neither the output nor a gradient."""
    layer, x = make_layer(), torch.randn(4, 8, requires_grad=True)
    with torch.no_grad():
        layer.router.bias[3] = -1e4
        for weight in (layer.gate, layer.up, layer.down, layer.gate_bias, layer.up_bias, layer.down_bias):
            weight[3] = torch.nan
    layer(x).sum().backward()
    grads = {name: p.grad for name, p in layer.named_parameters()}
    assert x.grad is not None and x.grad.isfinite().all()
    assert all(g.isfinite().all() and (name.startswith("router") or not g[3].any()) for name, g in grads.items())


def test_equals_every_expert_weighted() -> None:
    layer, x = make_layer(), torch.randn(6, 8)
    logits, chosen = layer.router(x).topk(2, -1)
    weights = torch.zeros(6, 5).scatter(1, chosen, logits.softmax(-1))
    every = torch.stack([layer.compute_expert(n, x) for n in range(5)], 1)
    torch.testing.assert_close(layer(x), (every * weights[..., None]).sum(1))
