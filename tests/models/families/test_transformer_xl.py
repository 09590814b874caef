"""Transformer-XL equals the paper's formulas, and its memory equals one long pass."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from regard.attention.parts.masks import Pairs
from regard.errors import BadInput, Unsupported
from regard.models.checkpoint.checkpoint import load
from regard.models.families.transformer_xl import transformer_xl, transformer_xl_large
from regard.nn.block import StackConfig
from regard.nn.cache import Cache

from ..checkpoint_equality import assert_close, random_weights

SIZES = {"layers": 3, "dim": 15, "heads": 3, "hidden": 22, "vocabulary": 19, "memory": 7, "dropout": 0.0}


def make_model(**changes):
    return random_weights(transformer_xl(**{**SIZES, **changes}).build(), size=0.25)


def segments(*lengths: int, batch: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(0, 19, (batch, n), generator=generator) for n in lengths]


def shift_rows(scores: Tensor) -> Tensor:
    """Column r of row i, which is for the distance keys − 1 − r, moved to the key at that distance (appendix B)."""
    batch, heads, queries, keys = scores.shape
    padded = torch.cat([scores.new_zeros(batch, heads, queries, 1), scores], dim=-1)
    return padded.view(batch, heads, keys + 1, queries)[:, :, 1:].reshape(batch, heads, queries, keys)


class Paper:
    """The paper's formulas one after the other, with our model's parameters."""

    def __init__(self, model, memory: int, reach: int | None = None) -> None:
        self.p, self.memory, self.reach = dict(model.named_parameters()), memory, reach
        self.layers, self.heads = len(model.stack.blocks), model.config.stack.heads
        self.inner = model.stack.blocks[0].attention.head_dim

    def waves(self, keys: int, dim: int) -> Tensor:
        """R: row r stands for the distance keys − 1 − r."""
        distance = torch.arange(keys - 1, -1, -1.0)
        distance = distance if self.reach is None else distance.clamp(max=self.reach)
        angle = torch.outer(distance, 1 / 10000 ** (torch.arange(0, dim, 2.0) / dim))
        return torch.cat([angle.sin(), angle.cos()], dim=-1)[:, :dim]

    def layer(self, n: int, x: Tensor, before: Tensor | None) -> Tensor:
        at = f"stack.blocks.{n}."
        whole = x if before is None else torch.cat([before.detach(), x], dim=1)
        batch, queries, dim = x.shape
        keys, inner = whole.shape[1], self.heads * self.inner
        q = (x @ self.p[at + "attention.q.weight"].T).view(batch, queries, self.heads, self.inner)
        k = (whole @ self.p[at + "attention.k.weight"].T).view(batch, keys, self.heads, self.inner)
        v = (whole @ self.p[at + "attention.v.weight"].T).view(batch, keys, self.heads, self.inner)
        project = self.p["stack.position.project.weight"][n * inner : (n + 1) * inner]
        r = (self.waves(keys, dim) @ project.T).view(keys, self.heads, self.inner)
        us, vs = self.p["stack.position.content_bias"], self.p["stack.position.position_bias"]
        u, bias = us[min(n, len(us) - 1)], vs[min(n, len(vs) - 1)]
        content = torch.einsum("bihd,bjhd->bhij", q + u, k)
        place = shift_rows(torch.einsum("bihd,rhd->bhir", q + bias, r))
        later = torch.arange(keys) > torch.arange(queries)[:, None] + keys - queries
        weights = ((content + place) / math.sqrt(self.inner)).masked_fill(later, -torch.inf).softmax(-1)
        mixed = torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2) @ self.p[at + "attention.out.weight"].T
        x = self.norm(at + "attention_norm.", x + mixed)
        inside = torch.relu(x @ self.p[at + "feed_forward.up.weight"].T + self.p[at + "feed_forward.up.bias"])
        inside = inside @ self.p[at + "feed_forward.down.weight"].T + self.p[at + "feed_forward.down.bias"]
        return self.norm(at + "feed_forward_norm.", x + inside)

    def norm(self, at: str, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * self.p[at + "weight"] + self.p[at + "bias"]

    def __call__(self, tokens: Tensor, memories: list[Tensor] | None) -> tuple[Tensor, list[Tensor]]:
        """Logits, and what the next segment sees of each layer's input."""
        table = self.p["embed.tokens.weight"]
        x, kept = table[tokens] * math.sqrt(table.shape[1]), []
        for n in range(self.layers):
            before = None if memories is None else memories[n]
            kept.append((x if before is None else torch.cat([before, x], 1)).detach()[:, -self.memory :])
            x = self.layer(n, x, before)
        return x @ table.T + self.p["head.bias"], kept


@pytest.mark.parametrize("changes", [{}, {"untied": True}, {"head_dim": 4}, {"reach": 5}, {"memory": 3}], ids=str)
def test_equals_the_paper(changes: dict) -> None:
    model = make_model(**changes).train()
    paper = Paper(model, model.config.stack.memory_length, changes.get("reach"))
    cache, memories = None, None
    for tokens in segments(5, 6, 1, 8):
        out = model(tokens=tokens, cache=cache)
        wanted, memories = paper(tokens, memories)
        cache = out.cache
        assert_close(out.logits, wanted, "logits")
        weight = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(0))
        parameters = list(model.parameters())
        actual = torch.autograd.grad((out.logits * weight).sum(), parameters)
        theirs = torch.autograd.grad((wanted * weight).sum(), parameters)
        largest = max(float(x.abs().max()) for x in theirs)
        for (name, _), a, b in zip(model.named_parameters(), actual, theirs, strict=True):
            assert float((a - b).abs().max()) <= 1e-4 * max(float(b.abs().max()), 1e-3 * largest), name


def test_memory_equals_one_long_pass() -> None:
    model, parts = make_model(), segments(4, 6, 1, 1, 9, 2)
    starts = torch.cat([torch.full((n.shape[1],), s) for n, s in zip(parts, (0, 4, 10, 11, 12, 21), strict=True)])
    i, j = torch.arange(23)[:, None], torch.arange(23)
    allowed = (j <= i) & (j >= starts[:, None] - 7)
    with torch.no_grad():
        whole = model.stack(model.embed(torch.cat(parts, 1)), mask=Pairs(allowed))
        cache, pieces = None, []
        for tokens in parts:
            out = model(tokens=tokens, cache=cache)
            cache = out.cache
            pieces.append(out.hidden)
    assert_close(torch.cat(pieces, 1), whole, "hidden", 1e-5)


def test_learning_and_resting_give_the_same_numbers() -> None:
    model = make_model()
    answers = []
    for training in (True, False):
        cache, logits = None, []
        for tokens in segments(5, 9, 2):
            out = model.train(training)(tokens=tokens, cache=cache)
            cache = out.cache
            logits.append(out.logits.detach())
        answers.append(torch.cat(logits, 1))
    assert_close(*answers, "logits", 1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_memory_is_cut_and_carries_no_gradient(training: bool) -> None:
    model, cache = make_model().train(training), None
    for tokens in segments(5, 9, 2):
        cache = model(tokens=tokens, cache=cache).cache
    assert (cache.length, cache.cached_tokens) == (16, 7)
    kept = [x for value in cache.entries.values() if hasattr(value, "tensors") or isinstance(value, Tensor)
            for x in ((value,) if isinstance(value, Tensor) else value.tensors())]  # fmt: skip
    assert len(kept) == (3 if training else 6)
    assert all(not x.requires_grad and 7 in x.shape for x in kept)


def test_learns_with_labels_and_memory() -> None:
    model, (first, second) = make_model().train(), segments(6, 5)
    out = model(tokens=first, labels=first)
    assert out.cache is not None and out.cache.length == 6
    again = model(tokens=second, labels=second, cache=out.cache)
    alone = model(tokens=second, labels=second)
    again.loss.backward()
    assert abs(float((again.loss - alone.loss).detach())) > 1e-4
    assert all(p.grad is not None for p in model.parameters())


def test_a_cache_of_evaluation_does_not_teach() -> None:
    model, (first, second) = make_model(), segments(3, 3)
    cache = model(tokens=first).cache
    with pytest.raises(BadInput, match="Begin a new one"):
        model.train()(tokens=second, cache=cache)


def test_rotary_has_no_memory_to_learn_from() -> None:
    stack = StackConfig(8, 1, 2, position="Rotary()", mask="Causal()", memory_length=4).build().train()
    with pytest.raises(Unsupported, match="relative positions"):
        stack(torch.zeros(1, 3, 8), cache=Cache())


def test_generates_within_its_memory() -> None:
    model, prompt = make_model(), segments(6)[0]
    text = model.generate(tokens=prompt, max_new=15)
    with torch.no_grad():
        out = model(tokens=prompt)
        for n in range(6, 21):
            assert torch.equal(out.logits[:, -1].argmax(-1), text[:, n])
            out = model(tokens=text[:, n : n + 1], cache=out.cache)


def test_prompts_of_different_length() -> None:
    model, (long,) = make_model(), segments(6)
    together = model.generate(tokens=long, lengths=torch.tensor([6, 2]), max_new=12)
    alone = model.generate(tokens=long[1:, :2], max_new=12)
    assert together[1, :14].tolist() == alone[0].tolist()
    assert model.generate(tokens=long, max_new=9, beams=3).shape == (2, 15)


def test_published_sizes() -> None:
    for config, published in ((transformer_xl(), 41), (transformer_xl_large(), 277)):
        with torch.device("meta"):
            assert round(sum(p.numel() for p in config.build().parameters()) / 1e6) == published


def test_saved_and_loaded(tmp_path: Path) -> None:
    model, (tokens,) = make_model(untied=True), segments(5)
    model.save(tmp_path)
    again = load(tmp_path)
    assert again.config == model.config
    assert torch.equal(again(tokens=tokens).logits, model(tokens=tokens).logits)
