"""Speech encoders: the CTC loss by its definition, frames near and far, padding."""

from __future__ import annotations

from itertools import groupby, product
from pathlib import Path

import pytest
import torch

from regard.errors import BadInput
from regard.models.checkpoint.checkpoint import load
from regard.models.families.speech import speech, truncated_speech

from ..checkpoint_equality import assert_close, random_weights

SIZES = {"vocabulary": 3, "bins": 5, "stack": 3, "layers": 2, "dim": 12, "heads": 2, "hidden": 17}


def by_definition(chances: torch.Tensor, labels: list[int]) -> torch.Tensor:
    """−ln of the probability of all ways, each tried: repeats fall together, then blanks fall out."""
    total = torch.zeros(())
    for way in product(range(chances.shape[1]), repeat=chances.shape[0]):
        if [letter for letter, _ in groupby(way) if letter] == labels:
            total = total + torch.stack([chances[n, letter] for n, letter in enumerate(way)]).prod()
    return -total.log()


def test_loss_and_gradients_by_definition() -> None:
    model = random_weights(speech(**SIZES).build())
    sound, lengths = torch.randn(3, 16, 5), torch.tensor([16, 9, 11])
    labels = torch.tensor([[1, 1, 2], [2, -100, -100], [2, 1, -100]])
    out = model(sound=sound, lengths=lengths, labels=labels)
    chances = model(sound=sound, lengths=lengths).logits.softmax(-1)
    rows = [by_definition(chances[0, :6], [1, 1, 2]) / 3, by_definition(chances[1, :3], [2])]
    wanted = (sum(rows) + by_definition(chances[2, :4], [2, 1]) / 2) / 3
    torch.testing.assert_close(out.loss, wanted, rtol=1e-5, atol=1e-6)
    actual = torch.autograd.grad(out.loss, list(model.parameters()))
    exact = torch.autograd.grad(wanted, list(model.parameters()))
    largest = max(float(x.abs().max()) for x in exact)
    for (name, _), a, b in zip(model.named_parameters(), actual, exact, strict=True):
        assert (a - b).abs().max() <= 1e-4 * max(float(b.abs().max()), 1e-2 * largest), name


def test_labels_that_do_not_fit() -> None:
    """Two places cannot say three letters: the row counts as zero and teaches nothing."""
    model = random_weights(speech(**SIZES).build())
    loss = model(sound=torch.randn(1, 6, 5), labels=torch.tensor([[1, 2, 1]])).loss
    loss.backward()
    assert loss == 0 and all(p.grad is None or not p.grad.any() for p in model.parameters())
    with pytest.raises(BadInput, match=r"labels has shape \[2, 3\]"):
        model(sound=torch.randn(1, 6, 5), labels=torch.ones(2, 3, dtype=torch.long))


@torch.no_grad()
@pytest.mark.parametrize("make", [speech, truncated_speech])
def test_padding_never_matters(make) -> None:
    model = random_weights(make(**SIZES).build())
    sound, lengths = torch.randn(3, 40, 5), torch.tensor([40, 31, 8])
    batch = model(sound=sound, lengths=lengths).logits
    assert batch.shape == (3, 14, 3)
    for row, length in enumerate(lengths.tolist()):
        alone = model(sound=sound[row : row + 1, :length]).logits
        assert_close(batch[row : row + 1, : alone.shape[1]], alone, f"row {row}", 1e-5)
    noise = torch.where(torch.arange(40)[:, None] < lengths[:, None, None], sound, 1e3 * torch.ones(()))
    assert torch.equal(model(sound=noise, lengths=lengths).logits, batch)


@torch.no_grad()
def test_truncated_attention_sees_near_frames_only() -> None:
    """Two layers of two tokens back and one ahead: four back, two ahead."""
    model = random_weights(truncated_speech(before=2, after=1, **SIZES).build())
    sound = torch.randn(1, 60, 5)
    other = sound.clone()
    other[:, 30:33] += 1.0  # token 10
    changed = (model(sound=sound).logits - model(sound=other).logits).abs().amax((0, 2)) > 1e-6
    assert changed.nonzero().flatten().tolist() == [8, 9, 10, 11, 12, 13, 14]
    whole = random_weights(speech(**SIZES).build())
    assert ((whole(sound=sound).logits - whole(sound=other).logits).abs().amax((0, 2)) > 1e-6).all()


@torch.no_grad()
def test_a_wide_window_is_no_window() -> None:
    wide = random_weights(truncated_speech(before=99, after=99, **SIZES).build())
    whole = random_weights(speech(**SIZES).build())
    sound = torch.randn(2, 31, 5)
    assert_close(wide(sound=sound).logits, whole(sound=sound).logits, "logits", 1e-5)


def test_it_learns_to_write() -> None:
    """Four sounds, each letter a tone of its own for three tokens: the loss falls to almost nothing."""
    torch.manual_seed(1)
    config = truncated_speech(**{**SIZES, "vocabulary": 4, "dim": 32, "layers": 1}, dropout=0.0)
    model = config.build().train()
    labels = torch.tensor([[1, 2, 3], [3, 2, 1], [2, 1, -100], [3, -100, -100]])
    lengths = (labels > 0).sum(1) * 9
    sound = torch.nn.functional.one_hot(labels.clamp(min=0), 5).float().repeat_interleave(9, 1) * 3
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(120):
        loss = model(sound=sound, lengths=lengths, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    best = model.eval()(sound=sound, lengths=lengths).logits.argmax(-1)
    for row, length in enumerate((lengths // 3).tolist()):
        read = [letter for letter, _ in groupby(best[row, :length].tolist()) if letter]
        assert read == [x for x in labels[row].tolist() if x > 0], f"row {row}, loss {loss:.3f}"


def test_saved_and_read(tmp_path: Path) -> None:
    model = random_weights(truncated_speech(**SIZES).build())
    model.save(tmp_path)
    copy, sound = load(tmp_path), torch.randn(1, 20, 5)
    assert copy.config == model.config
    assert torch.equal(copy(sound=sound).logits, model(sound=sound).logits)


def test_size() -> None:
    """Frames and their norm; six blocks (attention, feed-forward, two norms); the last norm; the head."""
    with torch.device("meta"):
        actual = sum(p.numel() for p in speech().build().parameters())
    block = 4 * (256**2 + 256) + 2 * 256 * 1024 + 1024 + 256 + 2 * 512
    assert actual == 4 * 80 * 256 + 256 + 512 + 6 * block + 512 + 32 * 257
