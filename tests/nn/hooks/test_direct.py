"""`watch` and `edit` on modules that call `rg.attend` in their own code."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch
from torch import Tensor, nn

import regard as rg
from regard import attend as renamed
from regard.attention.interception import INTERCEPTORS
from regard.nn.hooks.direct import FRAMES, calls_attend


class SelfAttention(nn.Module):
    """One call by the package's name."""

    def __init__(self, dim: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(dim, 3 * dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return rg.attend(q, k, v, mask=rg.Causal()).transpose(1, 2).flatten(2)


def twice(q: Tensor) -> Tensor:
    return renamed(q, q, q, backend="reference") + rg.attend(q, q, q, score=rg.Dot(scale=0.5))


class TwoCalls(nn.Module):
    """Two calls in a function of the file, one of them by another name and with a named backend."""

    def forward(self, x: Tensor) -> Tensor:
        return twice(x[:, None])[:, 0]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SelfAttention(), TwoCalls()
        self.third = rg.nn.MultiHeadAttention(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.second(self.first(x) + x))


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))


def test_calls_are_found_by_code() -> None:
    assert calls_attend(SelfAttention()) and calls_attend(TwoCalls())
    assert (
        not calls_attend(nn.Linear(2, 2))
        and not calls_attend(Model())
        and not calls_attend(nn.MultiheadAttention(2, 1))
    )


def test_every_call_leaves_its_view_and_the_same_bits(model: Model) -> None:
    before = model(X)
    with rg.watch(model, weights=True) as views:
        during = model(X)
    assert torch.equal(before, during) and torch.equal(model(X), before)
    assert list(views) == ["first", "second", "second[1]", "third"]
    weights = views["first"].weights
    assert weights is not None and weights.shape == (2, 2, 5, 5) and not weights.triu(1).any()
    q, k, v = (part.unflatten(2, (2, -1)).transpose(1, 2) for part in model.first.qkv(X).chunk(3, -1))
    assert torch.equal(weights, rg.look(q, k, v, mask=rg.Causal(), weights=True).weights)
    assert "second[1]" in repr(views) and not INTERCEPTORS and FRAMES.get() == ()


def test_several_passes_are_several_calls(model: Model) -> None:
    with rg.watch(model) as views:
        model(X)
        model(X[:1])
    assert [view.lse.shape[0] for view in views.calls("first")] == [2, 1] and len(views.calls("second[1]")) == 2


def test_a_module_alone_and_the_gradient(model: Model) -> None:
    with rg.watch(model.first, weights=True) as views:
        model.first(X).sum().backward()
    assert list(views) == ["attend"]
    gradient = views.records["attend"][0].gradient
    assert gradient is not None and torch.equal(gradient, torch.ones_like(gradient))


def test_heads_are_edited(model: Model) -> None:
    plain = model.first(X)
    with rg.edit(model.first, {(0, 1): "silent"}):
        silent = model.first(X)
    assert torch.equal(silent[..., :4], plain[..., :4]) and not silent[..., 4:].any() and plain[..., 4:].any()
    with rg.edit(model, {"first": {0: "uniform"}}), rg.watch(model, weights=True) as views:
        model(X)
    weights = views["first"].weights
    assert weights is not None
    torch.testing.assert_close(weights[:, 0], (torch.ones(5, 5).tril() / torch.arange(1, 6)[:, None]).expand(2, 5, 5))
    assert torch.equal(model.first(X), plain)


def test_an_error_and_other_threads_leave_nothing_behind(model: Model) -> None:
    with rg.watch(model) as views:
        with pytest.raises(RuntimeError):
            model(torch.randn(2, 5, 7))
        thread = threading.Thread(target=lambda: asyncio.run(asyncio.to_thread(model, X)))
        thread.start()
        thread.join()
        assert FRAMES.get() == () and not views
        model(X)
    assert len(views) == 4 and not INTERCEPTORS


def test_a_model_without_attention_says_what_is_looked_for() -> None:
    with pytest.raises(rg.BadInput, match=r"Attend is regard\.attend as a module"), rg.watch(nn.Linear(2, 2)):
        pass
