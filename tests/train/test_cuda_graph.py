"""A recorded step makes the updates that the step itself makes; nothing it does depends on what is in tensors."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from accelerate.state import AcceleratorState
from torch import Tensor, nn

import regard as rg
from regard.attention.backends import sdpa
from regard.attention.call import make_call
from regard.attention.tracing import cuda_graph_mode, in_cuda_graph, shapes_only
from regard.bench import translation
from regard.data.text import Document
from regard.models.model import EncoderDecoderModel
from regard.settings import Training
from regard.tasks.architecture import Architecture
from regard.tasks.inputs.padding import pad_to_multiples
from regard.tasks.lm import Lm
from regard.tasks.translate import pair_loss, token_positions
from regard.train.cuda_graph import CudaGraphStep
from regard.train.trainer import Trainer

WORDS, WIDTH = 41, 16
BF16 = {"precision": "bf16", "compile": True}


def translator() -> EncoderDecoderModel:
    torch.manual_seed(0)
    return translation.build_translators(WORDS, WIDTH)[0].train()


def batch(pairs: int, seed: int, tokens: int = 48) -> dict[str, Tensor]:
    """Pairs of sentences, the rows filled up to one length whatever the sentences are."""
    draw = torch.Generator().manual_seed(seed)
    lengths, target_lengths = (torch.randint(1, tokens + 1, (pairs,), generator=draw) for _ in range(2))
    words = lambda: torch.randint(translation.FIRST, WORDS, (pairs, tokens), generator=draw)  # noqa: E731
    beyond = torch.arange(tokens) >= target_lengths[:, None]
    return {
        "tokens": words(),
        "lengths": lengths,
        "targets": words(),
        "target_lengths": target_lengths,
        "labels": words().masked_fill(beyond, -100),
    }


def gradients(model: EncoderDecoderModel, given: dict[str, Tensor]) -> list[Tensor]:
    loss = translation.regard_loss(model, given)
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


def test_blindly_is_open_only_inside() -> None:
    assert not shapes_only() and not in_cuda_graph()
    with cuda_graph_mode():
        with cuda_graph_mode():
            assert shapes_only()
        assert in_cuda_graph()
    assert not shapes_only()


def test_the_blind_compute_padding_and_the_same_loss_and_gradients() -> None:
    model, given = translator().double(), batch(5, 1)
    wanted = gradients(model, given)
    with cuda_graph_mode():
        found = gradients(model, given)
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("r_drop", [0.0, 2.0])
@pytest.mark.parametrize("told", [False, True])
def test_a_batch_pad_to_multiples_has_the_same_loss_and_gradients(r_drop: float, told: bool) -> None:
    """Empty rows and places do not count, whether or not it is told where they are; the loss is of float32."""
    model, given = translator().double(), batch(5, 1, tokens=11)
    rounded = pad_to_multiples(given, {"tokens": translation.PAD, "targets": translation.PAD, "labels": -100})
    assert rounded["tokens"].shape == (32, 16) and rounded["lengths"].shape == (32,)
    if told:
        rounded |= {"places": token_positions(rounded["lengths"], 16, 64)}
        rounded |= {"target_places": token_positions(rounded["target_lengths"], 16, 64)}
        assert len(rounded["places"]) == 64 > int(given["lengths"].sum())
    wanted = pair_loss(model, given, 0.1, r_drop)
    with cuda_graph_mode():
        found = pair_loss(model, rounded, 0.1, r_drop)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
    weights = list(model.parameters())
    for got, want in zip(torch.autograd.grad(found, weights), torch.autograd.grad(wanted, weights), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


def test_a_long_window_is_no_tensor_of_queries_and_keys_while_a_step_is_recorded() -> None:
    q = torch.zeros(1, 1, 1, 1).expand(1, 12, 16384, 64)
    window = rg.Window(256, 256) & rg.Lengths(torch.tensor([16000]))
    with cuda_graph_mode():
        assert "of more than" in (sdpa.unsupported_reason(make_call(q, q, q, mask=window)) or "")
        assert sdpa.unsupported_reason(make_call(q[:, :, :512], q[:, :, :512], q[:, :, :512], mask=window)) is None


def test_rows_without_a_key_are_zero_for_the_blind_too() -> None:
    q, k, v = (torch.randn(2, 2, 3, 8) for _ in range(3))
    with cuda_graph_mode():
        found = rg.attend(q, k, v, mask=rg.Lengths(torch.tensor([2, 0])))
    assert found[0].any() and not found[1].any()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(rg.Unsupported, match="GPU"):
        CudaGraphStep(lambda given: given["x"].sum())


def stepper(model: EncoderDecoderModel) -> Callable[[dict[str, Tensor]], Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True, capturable=True)

    def step(given: dict[str, Tensor]) -> Tensor:
        loss = translation.regard_loss(model, given)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


@pytest.mark.gpu
def test_losses_are_those_of_the_step_itself_on_batches_of_other_lengths() -> None:
    """Ten updates with batches of two shapes, whose sentences all have other lengths."""
    ours = translator().cuda()
    theirs = copy.deepcopy(ours)
    plain, recorded = stepper(theirs), CudaGraphStep(stepper(ours), warmup=2)
    for n in range(10):
        given = batch(7 if n % 2 else 6, n)
        with cuda_graph_mode():
            wanted = plain({name: x.cuda() for name, x in given.items()})
        torch.testing.assert_close(recorded(given), wanted.detach(), rtol=1e-4, atol=1e-3)
    assert all(one.captured is not None for one in recorded.graphs.values()) and len(recorded.graphs) == 2


@pytest.mark.gpu
def test_what_is_fixed_has_a_recording_of_its_own() -> None:
    torch.manual_seed(0)
    stack = rg.nn.Stack(rg.nn.StackConfig(dim=32, layers=2, heads=2, window=16)).cuda()
    plain = lambda given: stack(given["x"], global_tokens=given["global_tokens"]).square().sum().detach()  # noqa: E731
    recorded = CudaGraphStep(plain, fixed=["global_tokens"], warmup=1)
    for n in range(8):
        chosen = torch.zeros(1, 100, dtype=torch.bool)
        chosen[0, 50 * (n % 2)] = True
        given = {"x": torch.randn(1, 100, 32), "global_tokens": chosen}
        wanted = plain({name: x.cuda() for name, x in given.items()})
        torch.testing.assert_close(recorded(given), wanted)
    assert len(recorded.graphs) == 2


@pytest.mark.gpu
def test_a_step_that_waits_is_refused() -> None:
    weight = nn.Parameter(torch.ones(3, device="cuda"))
    recorded = CudaGraphStep(lambda given: (weight * given["x"]).sum() * float(given["x"].sum()), warmup=1)
    recorded({"x": torch.ones(3)})
    with pytest.raises(rg.Unsupported, match="cannot be captured"):
        recorded({"x": torch.ones(3)})
    assert torch.randn(3, device="cuda").isfinite().all()  # the generator that the recording had is free again


@pytest.mark.gpu
@pytest.mark.parametrize("how", [{}, {"ema": 0.9, "max_grad_norm": 0.0}, BF16], ids=str)
def test_a_run_that_is_recorded_learns_as_one_that_is_not(how: dict, tmp_path: Path) -> None:
    """The losses of 40 updates of a language model without dropout; one more after a stop and a new start."""
    AcceleratorState._reset_state(reset_partial_state=True)  # else a process has one precision for good
    text = "".join(Random(0).choice("ab cd") for _ in range(3000))
    given = Lm.Settings(context=32)
    learned = (Document(text, "a.txt"),)
    task = Lm.prepare(learned, given)
    made = [task.config(Architecture(dim=32, layers=2, heads=2, positions="learned", dropout=0.0)).build()]
    made.append(copy.deepcopy(made[0]))
    usual = Training(epochs=None, steps=40, batch_tokens=256, warmup=5, evaluate_every=20, save_every=20, **how)
    losses: list[list[float]] = [[], []]
    for n, record in enumerate((False, True)):
        heard = losses[n]
        tell = lambda event, heard=heard: heard.append(event.values["loss"]) if event.name == "step" else None  # noqa: E731
        for steps in (40, 41):
            now = replace(usual, cuda_graph=record, steps=steps)
            Trainer(task, made[n], learned, learned, now, tmp_path / str(n), lambda model, scores: None, tell).fit()
    assert len(losses[0]) == 41 and losses[0][-1] < losses[0][0]
    rough = 2e-2 if "precision" in how else 1e-3
    torch.testing.assert_close(torch.tensor(losses[1]), torch.tensor(losses[0]), rtol=rough, atol=rough)
