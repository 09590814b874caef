"""Models compiled part by part compute what they computed before."""

from typing import Any

import pytest
import torch
from torch import nn

import regard as rg
from regard.models.config import SequenceConfig
from regard.models.families.gpt2 import gpt2
from regard.models.families.vit import vit
from regard.models.model import SequenceModel, compile_blocks
from regard.nn.attention import Attend
from regard.nn.embeddings.text import TextEmbeddingConfig


@pytest.fixture
def eager_compile(monkeypatch: pytest.MonkeyPatch):
    """Modules are compiled without generated code, which would take long."""
    compile_in_place = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self: compile_in_place(self, backend="eager"))
    yield
    torch.compiler.reset()


def make_windowed() -> SequenceModel:
    stack = rg.nn.StackConfig(dim=8, layers=2, heads=2, window=4)
    return SequenceConfig(TextEmbeddingConfig(vocabulary=11, dim=8, positions=12), stack).build()


def losses(model: nn.Module, given: dict) -> list[torch.Tensor]:
    output = model(**given)
    loss = output.hidden.sin().sum() if output.loss is None else output.loss
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)]


SMALL: dict[str, Any] = {"layers": 2, "dim": 8, "heads": 2}
CASES = {
    "GPT-2": (lambda: gpt2(**SMALL, vocabulary=11, positions=12, dropout=0.0).build(), ("tokens", "labels")),
    "window": (make_windowed, ("tokens", "global_tokens")),
    "ViT": (lambda: vit(**SMALL, hidden=16, size=8, patch=4).build(), ("images",)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_same_loss_and_gradients(name: str, eager_compile: None) -> None:
    torch.manual_seed(0)
    make, names = CASES[name]
    model = make().double().train()
    tokens = torch.randint(11, (2, 12))
    every = {
        "tokens": tokens,
        "labels": tokens,
        "global_tokens": torch.arange(12).expand(2, -1) == 3,
        "images": torch.randn(2, 3, 8, 8, dtype=torch.float64),
    }
    given = {name: every[name] for name in names}
    wanted = losses(model, given)
    compile_blocks(model)
    for got, want in zip(losses(model, given), wanted, strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-8)


def test_attention_with_its_own_kernels_stays_outside(eager_compile: None) -> None:
    inside, outside = CASES["GPT-2"][0](), make_windowed()
    for model in (inside, outside):
        compile_blocks(model)
    kept = [["forward" in vars(m) for m in model.modules() if isinstance(m, Attend)] for model in (inside, outside)]
    assert not any(kept[0]) and all(kept[1])
