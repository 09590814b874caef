"""Longformer equals transformers'."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regard.models.families.longformer import longformer

from ..checkpoint_equality import assert_close, assert_same, assert_writes_back, loaded, ragged, random_weights

transformers = pytest.importorskip("transformers")

SIZES = {
    "num_hidden_layers": 2, "hidden_size": 33, "num_attention_heads": 3, "intermediate_size": 29, "vocab_size": 41,
    "max_position_embeddings": 103, "type_vocab_size": 1, "attention_window": 6, "pad_token_id": 1, "bos_token_id": 0,
    "eos_token_id": 2, "sep_token_id": 2,
}  # fmt: skip


def theirs(kind: str, **more):
    config = transformers.LongformerConfig(**{**SIZES, **more})
    return random_weights(getattr(transformers, f"Longformer{kind}")(config))


def inputs(lengths: list[int], global_positions: list[list[int]] | None = None) -> tuple[dict, dict]:
    """A ragged batch as our arguments and as theirs, with the positions of each row's global tokens."""
    batch = ragged(lengths, 41)
    tokens = batch["tokens"].masked_fill(batch["mask"] == 0, 1)
    ours, yours = (
        {"tokens": tokens, "lengths": batch["lengths"]},
        {"input_ids": tokens, "attention_mask": batch["mask"]},
    )
    if global_positions is not None:
        flags = torch.zeros_like(tokens)
        for row, positions in zip(flags, global_positions, strict=True):
            row[positions] = 1
        ours["global_tokens"], yours["global_attention_mask"] = flags.bool(), flags
    return ours, yours


CASES = {
    "no global token": ([53, 11, 30], None),
    "the first": ([53, 11, 30], [[0], [0], [0]]),
    "several, not the same number": ([53, 11, 30], [[0, 1, 17, 52], [4], [0, 29]]),
    "some rows without": ([47, 9], [[], [0, 3]]),
    "a whole number of windows": ([48, 24], [[0], [20]]),
    "shorter than a window": ([4, 3], [[0], [2]]),
    "every token": ([13], [list(range(13))]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("window", [6, [4, 12]])
def test_hidden_and_pooled(tmp_path: Path, case: str, window: int | list[int]) -> None:
    model = theirs("Model", attention_window=window)
    ours, (mine, yours) = loaded(model, tmp_path), inputs(*CASES[case])
    a, b = ours(**mine), model(**yours)
    assert_same(ours, model, torch.cat([a.pooled[:, None], a.hidden], 1),
                torch.cat([b.pooler_output[:, None], b.last_hidden_state], 1), mine["lengths"] + 1)  # fmt: skip


def test_second_projections_learn(tmp_path: Path) -> None:
    ours, (mine, _) = loaded(theirs("Model"), tmp_path), inputs([30], [[0]])
    ours(**mine).hidden.square().sum().backward()
    attention = ours.stack.blocks[0].attention
    for layer in (attention.query_global, attention.key_global, attention.value_global):
        assert layer.weight.grad.abs().max() > 0


@pytest.mark.parametrize("window", [6, [4, 12]])
def test_masked_words(tmp_path: Path, window: int | list[int]) -> None:
    model = theirs("ForMaskedLM", attention_window=window)
    ours, (mine, yours) = loaded(model, tmp_path), inputs([31, 8], [[0, 5], [2]])
    assert_same(ours, model, ours(**mine).logits, model(**yours).logits, mine["lengths"])
    assert_writes_back(ours, model, tmp_path, **yours)


@pytest.mark.parametrize("global_positions", [None, [[0, 7], [3]]])
def test_classes_of_texts(tmp_path: Path, global_positions: list[list[int]] | None) -> None:
    model = theirs("ForSequenceClassification", num_labels=5)
    ours, (mine, yours) = loaded(model, tmp_path), inputs([31, 8], global_positions)
    assert_same(ours, model, ours(**mine).logits, model(**yours).logits)
    assert_writes_back(ours, model, tmp_path, **yours)


def test_classes_of_tokens(tmp_path: Path) -> None:
    model = theirs("ForTokenClassification", num_labels=5)
    ours, (mine, yours) = loaded(model, tmp_path), inputs([31, 8])
    assert_same(ours, model, ours(**mine).logits, model(**yours).logits, mine["lengths"])
    assert_writes_back(ours, model, tmp_path, **yours)


def test_padding_never_matters(tmp_path: Path) -> None:
    ours, (mine, _) = loaded(theirs("Model"), tmp_path), inputs([40, 13], [[0, 22], [0, 5]])
    alone = ours(tokens=mine["tokens"][1:, :13], global_tokens=mine["global_tokens"][1:, :13]).hidden
    assert_close(ours(**mine).hidden[1:, :13], alone, "a row alone", 1e-5)


def test_published_size() -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in longformer().build().parameters()) == 148_659_456
