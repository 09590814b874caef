"""Generation equals transformers', and a cache changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from regard.errors import BadInput, Unsupported
from regard.models.families.bert import bert
from regard.models.families.gpt2 import gpt2
from regard.models.generation.generate import generate, generate_tokens, stream
from regard.models.generation.rules import TokenRules, read_rules, write_rules
from regard.models.generation.sampling import filter_logits

from ..checkpoint_equality import loaded, ragged, random_weights

transformers = pytest.importorskip("transformers")

GPT2 = {
    "n_layer": 2,
    "n_head": 3,
    "n_embd": 33,
    "vocab_size": 41,
    "n_positions": 61,
    "bos_token_id": 0,
    "eos_token_id": 7,
}
LLAMA = {
    "num_hidden_layers": 2, "hidden_size": 36, "num_attention_heads": 6, "num_key_value_heads": 2,
    "intermediate_size": 29, "vocab_size": 41, "eos_token_id": [7, 11], "bos_token_id": 0, "pad_token_id": 1,
}  # fmt: skip
T5 = {
    "num_layers": 2, "d_model": 32, "d_kv": 7, "d_ff": 37, "num_heads": 3, "vocab_size": 41, "eos_token_id": 7,
    "decoder_start_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
MARIAN = {
    "encoder_layers": 2, "decoder_layers": 2, "d_model": 36, "encoder_attention_heads": 3, "decoder_attention_heads": 3,
    "encoder_ffn_dim": 31, "decoder_ffn_dim": 31, "vocab_size": 41, "eos_token_id": 7, "pad_token_id": 40,
    "decoder_start_token_id": 40, "forced_eos_token_id": 7, "max_position_embeddings": 64, "scale_embedding": True,
}  # fmt: skip
DECODERS = {"GPT2LMHeadModel": ("GPT2Config", GPT2), "LlamaForCausalLM": ("LlamaConfig", LLAMA)}
PAIRS = {"T5ForConditionalGeneration": ("T5Config", T5), "MarianMTModel": ("MarianConfig", MARIAN)}


def theirs(kind: str, seed: int = 0, size: float = 0.3):
    config, sizes = (DECODERS | PAIRS)[kind]
    model = random_weights(getattr(transformers, kind)(getattr(transformers, config)(**sizes)), seed, size)
    with torch.no_grad():
        for module in model.modules():
            if hasattr(module, "create_weight"):  # Marian's sinusoids
                module.weight.copy_(module.create_weight())
    return model


def small(seed: int = 0):
    return random_weights(gpt2(layers=2, dim=12, heads=3, vocabulary=23, positions=40).build(), seed)


def to_left(tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as transformers wants a decoder's prompts: padded at the front; and the mask of what is real."""
    width = tokens.shape[1]
    rows = [torch.cat([row[n:] * 0, row[:n]]) for row, n in zip(tokens, lengths.tolist(), strict=True)]
    return torch.stack(rows), (torch.arange(width) >= (width - lengths)[:, None]).long()


def new_tokens(whole: Tensor, lengths: Tensor, count: int) -> list[list[int]]:
    return [row[n : n + count].tolist() for row, n in zip(whole, lengths.tolist(), strict=True)]


def cut(rows: list[list[int]], end: tuple[int, ...]) -> list[list[int]]:
    """Each row up to its first end."""
    actual = []
    for row in rows:
        stop = next((n + 1 for n, token in enumerate(row) if token in end), len(row))
        actual.append(row[:stop])
    return actual


STRATEGIES = [
    {},
    {"min_new": 9},
    {"beams": 3, "length_penalty": 0.7},
    {"beams": 3, "length_penalty": 2.0, "early": True},
    {"beams": 4, "length_penalty": -0.5, "min_new": 3},
]


def their_settings(strategy: dict) -> dict:
    names = {"beams": "num_beams", "min_new": "min_new_tokens", "early": "early_stopping"}
    return {names.get(name, name): value for name, value in strategy.items()} | {"do_sample": False}


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_decoders_equal_transformers(tmp_path: Path, kind: str, strategy: dict, seed: int) -> None:
    model = theirs(kind, seed)
    ours, batch = loaded(model, tmp_path), ragged([7, 3, 5], 41, seed)
    left, mask = to_left(batch["tokens"], batch["lengths"])
    wanted = model.generate(left, attention_mask=mask, max_new_tokens=17, pad_token_id=1, **their_settings(strategy))[
        :, 7:
    ]
    actual = generate_tokens(ours, tokens=batch["tokens"], lengths=batch["lengths"], max_new=17, pad=1, **strategy)
    end = ours.rules.end
    assert end == ((7,) if "GPT2" in kind else (7, 11))
    for row, n, total, their_row in zip(actual.tokens, batch["lengths"], actual.lengths, wanted, strict=True):
        assert row[n:total].tolist() == cut([their_row.tolist()], end)[0]
        assert (row[total:] == 1).all()
    assert torch.equal(actual.tokens[0, :7], batch["tokens"][0])


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("seed", [0, 1])
def test_encoder_decoders_equal_transformers(tmp_path: Path, kind: str, strategy: dict, seed: int) -> None:
    model = theirs(kind, seed)
    ours, batch = loaded(model, tmp_path), ragged([7, 3, 5], 40, seed)
    wanted = model.generate(
        batch["tokens"], attention_mask=batch["mask"], max_new_tokens=13, **their_settings(strategy)
    )
    actual = ours.generate(tokens=batch["tokens"], lengths=batch["lengths"], max_new=13, **strategy)
    assert actual.tolist() == wanted.tolist()


@pytest.mark.parametrize("kind", [*DECODERS, *PAIRS])
@pytest.mark.parametrize("strategy", [{}, {"beams": 3}, {"temperature": 0.9, "top_k": 7}], ids=str)
def test_cache_changes_nothing(tmp_path: Path, kind: str, strategy: dict) -> None:
    ours, batch = loaded(theirs(kind, size=0.5), tmp_path), ragged([6, 2, 9], 40)
    texts = []
    for cache in (True, False):
        if "temperature" in strategy:
            strategy = strategy | {"generator": torch.Generator().manual_seed(3)}
        given = {"tokens": batch["tokens"], "lengths": batch["lengths"]}
        texts.append(ours.generate(**given, max_new=15, end=(), cache=cache, **strategy))
    assert torch.equal(*texts)


def test_a_row_alone_and_in_a_batch() -> None:
    model, batch = small(), ragged([6, 2, 4], 23)
    together = model.generate(tokens=batch["tokens"], lengths=batch["lengths"], max_new=9)
    for row, tokens, n in zip(together, batch["tokens"], batch["lengths"].tolist(), strict=True):
        alone = model.generate(tokens=tokens[None, :n], max_new=9)
        assert row[: n + 9].tolist() == alone[0].tolist()


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize(
    ("top_k", "top_p"), [(None, None), (5, None), (None, 0.6), (9, 0.3), (1, None), (None, 1e-6), (99, 1.0)]
)
def test_warping_equals_transformers(temperature: float, top_k: int | None, top_p: float | None) -> None:
    logits = torch.randn(7, 31, generator=torch.Generator().manual_seed(0)) * 3
    logits[:, 4] = logits[:, 5]
    wanted = transformers.TemperatureLogitsWarper(temperature)(None, logits)
    if top_k is not None:
        wanted = transformers.TopKLogitsWarper(top_k)(None, wanted)
    if top_p is not None:
        wanted = transformers.TopPLogitsWarper(top_p)(None, wanted)
    assert torch.equal(filter_logits(logits, temperature, top_k, top_p), wanted)


def test_samples_follow_the_distribution() -> None:
    model = small()
    prompt = torch.tensor([[3, 5]]).expand(4000, -1)
    generator = torch.Generator().manual_seed(0)
    drawn = model.generate(tokens=prompt, max_new=1, temperature=0.8, top_k=6, generator=generator)[:, 2]
    with torch.no_grad():
        chances = filter_logits(model(tokens=prompt[:1]).logits[:, -1], 0.8, 6).softmax(-1)[0]
    assert (chances > 0).sum() == 6
    assert (drawn.bincount(minlength=23) / 4000 - chances).abs().max() < 0.03


def test_same_seed_same_text() -> None:
    model, prompt = small(), torch.tensor([[3, 5], [2, 1]])
    texts = [
        model.generate(tokens=prompt, max_new=20, temperature=1.0, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    ]
    assert torch.equal(texts[0], texts[1]) and not torch.equal(texts[0], texts[2])


def test_rows_end_by_themselves() -> None:
    model, prompt = small(), torch.tensor([[3, 5], [2, 1], [8, 9]])
    free = model.generate(tokens=prompt, max_new=12)
    end = int(free[0, 6])
    actual = generate_tokens(model, tokens=prompt, max_new=12, end=end, pad=22)
    for row, without, total in zip(actual.tokens, free, actual.lengths.tolist(), strict=True):
        expected = prompt.shape[1] + len(cut([without[2:].tolist()], (end,))[0])
        assert total == expected
        assert row[:total].tolist() == without[:total].tolist()
        assert (row[total:] == 22).all()
    assert actual.tokens.shape[1] == int(actual.lengths.max())


def test_stream_gives_what_generate_writes() -> None:
    model, batch = small(), ragged([4, 2], 23)
    whole = model.generate(tokens=batch["tokens"], lengths=batch["lengths"], max_new=8)
    columns = torch.stack(list(stream(model, tokens=batch["tokens"], lengths=batch["lengths"], max_new=8)), 1)
    assert columns.tolist() == new_tokens(whole, batch["lengths"], 8)


def test_nothing_leaks_out() -> None:
    model = small().train()
    for _ in zip(stream(model, tokens=torch.tensor([[1]]), max_new=5), range(2), strict=False):
        assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    assert model.training
    text = model.generate(tokens=torch.tensor([[1]]), max_new=5)
    model(tokens=text, labels=text).loss.backward()


def test_start_tokens(tmp_path: Path) -> None:
    ours, batch = loaded(theirs("T5ForConditionalGeneration"), tmp_path), ragged([5, 4], 40)
    given = {"tokens": batch["tokens"], "lengths": batch["lengths"], "max_new": 4, "end": ()}
    assert (ours.generate(**given)[:, 0] == 0).all()
    assert (ours.generate(**given, start=[3, 9])[:, :2] == torch.tensor([3, 9])).all()
    assert ours.generate(**given, start=torch.tensor([[1, 2], [5, 6]]))[:, :2].tolist() == [[1, 2], [5, 6]]


def test_beams_find_the_best_text() -> None:
    """With as many beams as there are texts the search is exhaustive."""
    model = random_weights(gpt2(layers=1, dim=6, heads=2, vocabulary=5, positions=9).build(), size=0.8)
    prompt = torch.tensor([[1, 2]])
    every = torch.cartesian_prod(*[torch.arange(5)] * 3)
    with torch.no_grad():
        whole = torch.cat([prompt.expand(125, -1), every], 1)
        chances = model(tokens=whole).logits.log_softmax(-1)[:, 1:-1].gather(2, every[..., None]).sum((1, 2))
    actual = generate_tokens(model, tokens=prompt, max_new=3, beams=25, length_penalty=0.0, end=())
    assert actual.tokens[0, 2:].tolist() == every[chances.argmax()].tolist()
    assert torch.allclose(actual.scores, chances.max())


def test_rules_are_kept(tmp_path: Path) -> None:
    rules = TokenRules((3, 4), (2, 7), 0, (5,), (6,), 8, 9)
    assert read_rules(write_rules(rules), {}) == rules
    model = small()
    model.rules = rules
    for format in ("regard", "huggingface"):
        model.save(tmp_path / format, format=format)
        from regard.models.checkpoint.checkpoint import load

        assert load(tmp_path / format).rules == rules


def test_rules_are_followed() -> None:
    model, prompt = small(), torch.tensor([[3, 5]])
    free = model.generate(tokens=prompt, max_new=6)[0, 2:].tolist()
    model.rules = TokenRules(suppressed=tuple(free), forced_first=11, forced_last=12)
    for strategy in ({}, {"beams": 3}):
        actual = model.generate(tokens=prompt, max_new=6, **strategy)[0, 2:].tolist()
        assert actual[0] == 11 and actual[-1] == 12 and not set(actual[1:-1]) & set(free)
    model.rules = TokenRules(suppressed_first=(free[0],))
    assert model.generate(tokens=prompt, max_new=6)[0, 2] != free[0]


@pytest.mark.parametrize(
    ("wrong", "kind", "says"),
    [
        ({"max_new": 0}, BadInput, "max_new is 0"),
        ({"max_new": 2.0}, BadInput, "max_new is 2.0"),
        ({"beams": 0}, BadInput, "beams is 0"),
        ({"top_p": 0.0, "temperature": 1.0}, BadInput, "top_p is 0.0"),
        ({"top_p": 1.1, "temperature": 1.0}, BadInput, "top_p is 1.1"),
        ({"top_k": 0, "temperature": 1.0}, BadInput, "top_k is 0"),
        ({"top_k": 3}, BadInput, "temperature=1.0"),
        ({"temperature": -1.0}, BadInput, "temperature is -1.0"),
        ({"beams": 2, "temperature": 1.0}, Unsupported, "Leave one of them out"),
        ({"min_new": 9, "max_new": 3}, BadInput, "min_new is 9"),
        ({"tokens": torch.zeros(2, 0, dtype=torch.long)}, BadInput, r"tokens is \[2, 0\]"),
        ({"tokens": torch.zeros(2, 3)}, BadInput, "float32"),
        ({"tokens": None}, BadInput, "none was given"),
        ({"lengths": torch.tensor([0])}, BadInput, r"lengths is \[0\]"),
        ({"lengths": torch.tensor([3])}, BadInput, r"lengths is \[3\]"),
        ({"max_new": 40}, BadInput, "max_new=39 at most"),
        ({"beam": 4}, BadInput, "Did you mean .beams."),
    ],
)
def test_refusals(wrong: dict, kind: type, says: str) -> None:
    with pytest.raises(kind, match=says):
        generate(small(), **{"tokens": torch.tensor([[1, 2]])} | wrong)


def test_refuses_what_cannot_write() -> None:
    with pytest.raises(BadInput, match="later tokens"):
        bert(layers=1, dim=8, heads=2, hidden=9, vocabulary=11).build().generate(tokens=torch.tensor([[1]]))
    with pytest.raises(BadInput, match="no head"):
        gpt2(layers=1, dim=8, heads=2, vocabulary=11, head=None).build().generate(tokens=torch.tensor([[1]]))
    with pytest.raises(Unsupported, match="at the end only"):
        stream(small(), tokens=torch.tensor([[1]]), max_new=3, beams=2)
