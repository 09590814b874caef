"""What `watch` and `edit` open is seen by their own thread and task only."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import regard as rg


@pytest.fixture
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return rg.nn.Stack(rg.nn.StackConfig(dim=8, layers=2, heads=2)).eval()


def run_in_thread(function) -> None:
    errors = []

    def call() -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def test_an_edit_does_not_change_another_threads_output(model) -> None:
    x = torch.randn(1, 5, 8)
    plain = model(x)
    with rg.edit(model, {(0, 1): "silent"}):
        edited = model(x)
        run_in_thread(lambda: torch.testing.assert_close(model(x), plain, rtol=0, atol=0))

        def edit_the_same_head() -> None:
            with rg.edit(model, {(0, 1): "uniform"}):
                assert not torch.equal(model(x), edited) and not torch.equal(model(x), plain)

        run_in_thread(edit_the_same_head)
        assert torch.equal(model(x), edited)
        with pytest.raises(rg.BadInput, match="edited already"), rg.edit(model, {(0, 1): "uniform"}):
            pass
    assert torch.equal(model(x), plain) and not torch.equal(edited, plain)


def test_another_threads_calls_are_not_recorded(model) -> None:
    x = torch.randn(1, 5, 8)
    with rg.watch(model) as views:
        model(x)

        def watch_too() -> None:
            with rg.watch(model) as others:
                model(x), model(x)
            assert len(others.calls("blocks.0.attention")) == 2

        run_in_thread(watch_too)
    assert len(views.calls("blocks.0.attention")) == 1


def test_views_show_the_edits_of_their_own_thread(model) -> None:
    x = torch.randn(1, 5, 8)
    inside, outside = threading.Event(), threading.Event()

    def edit_for_a_while() -> None:
        with rg.edit(model, {(0, 1): "silent"}):
            inside.set()
            outside.wait(20)

    thread = threading.Thread(target=edit_for_a_while)
    thread.start()
    assert inside.wait(20)
    with rg.watch(model) as views:
        model(x)
    outside.set()
    thread.join()
    assert bool((views["blocks.0.attention"].lse[:, 1] > -torch.inf).all())


def test_tasks_of_one_thread(model) -> None:
    x = torch.randn(1, 5, 8)
    plain = model(x)

    async def run_edited() -> torch.Tensor:
        with rg.edit(model, {(0, 0): "silent"}):
            await asyncio.sleep(0.01)
            return model(x)

    async def run_unchanged() -> torch.Tensor:
        await asyncio.sleep(0.005)
        return model(x)

    async def both() -> list[torch.Tensor]:
        return await asyncio.gather(run_edited(), run_unchanged())

    def run_both() -> None:
        first, second = asyncio.run(both())
        assert torch.equal(second, plain) and not torch.equal(first, plain)

    run_in_thread(run_both)  # another test's browser may have left a running event loop in this thread


def test_a_repeated_forward_pass_is_edited_too(model) -> None:
    """Activation checkpointing repeats the forward pass in backward: the same gradients as without it."""
    x = torch.randn(1, 5, 8, requires_grad=True)
    gradients = []
    for call in (model, lambda x: checkpoint(model, x, use_reentrant=False)):
        with rg.edit(model, {(0, 1): "silent"}):
            gradients.append(torch.autograd.grad(call(x).square().sum(), x)[0])
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
