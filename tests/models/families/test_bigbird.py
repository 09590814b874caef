"""BigBird equals transformers', at rest and learning."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import regard as rg
from regard.errors import BadInput
from regard.models.families.bigbird import bigbird
from regard.nn.sparse.bigbird import BigBirdBlocks, BigBirdDot

from ..checkpoint_equality import assert_close, assert_same, assert_writes_back, loaded, ragged, random_weights

transformers = pytest.importorskip("transformers")

SIZES = {
    "num_hidden_layers": 2, "hidden_size": 33, "num_attention_heads": 3, "intermediate_size": 29, "vocab_size": 41,
    "max_position_embeddings": 131, "type_vocab_size": 2, "block_size": 5, "num_random_blocks": 2, "sep_token_id": 2,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def theirs(kind: str, **more):
    config = transformers.BigBirdConfig(**{**SIZES, **more})
    return random_weights(getattr(transformers, f"BigBird{kind}")(config))


def inputs(lengths: list[int]) -> tuple[dict, dict]:
    """A ragged batch in our words and in theirs."""
    batch = ragged(lengths, 41)
    ours = {"tokens": batch["tokens"], "lengths": batch["lengths"]}
    return ours, {"input_ids": batch["tokens"], "attention_mask": batch["mask"]}


def exact(model, folder: Path):
    """Our model from theirs; both in double precision, where rounding hides no difference."""
    ours = loaded(model, folder).double()
    model.double()
    return ours


LENGTHS = {
    "whole blocks": [60],
    "blocks not full": [63, 63],
    "ragged": [97, 51, 8, 1],
    "the least that is sparse": [46],
    "all seen": [45, 30],
    "short": [7, 3],
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("case", LENGTHS)
def test_hidden_and_pooled(tmp_path: Path, case: str, training: bool) -> None:
    model = theirs("Model")
    ours, (mine, yours) = exact(model, tmp_path).train(training), inputs(LENGTHS[case])
    a, b = ours(**mine), model.train(training)(**yours)
    assert model.attention_type == ("original_full" if case in ("all seen", "short") else "block_sparse")
    assert_same(
        ours,
        model,
        torch.cat([a.pooled[:, None], a.hidden], 1),
        torch.cat([b.pooler_output[:, None], b.last_hidden_state], 1),
        mine["lengths"] + 1,
    )


@pytest.mark.parametrize(
    "more",
    [
        {"num_random_blocks": 1},
        {"num_random_blocks": 3, "block_size": 4},
        {"block_size": 1},
        {"num_attention_heads": 1, "num_hidden_layers": 3},
        {"use_bias": False, "rescale_embeddings": True, "hidden_act": "relu"},
        {"attention_type": "original_full"},
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_other_sizes(tmp_path: Path, more: dict, training: bool) -> None:
    model = theirs("Model", **more)
    ours, (mine, yours) = exact(model, tmp_path).train(training), inputs([71, 37])
    b = model.train(training)(**yours)
    assert_same(ours, model, ours(**mine).hidden, b.last_hidden_state, mine["lengths"])
    assert_writes_back(ours.float().eval(), model.float().eval(), tmp_path, **yours)


@pytest.mark.parametrize(("tokens", "positions"), [(1024, 1024), (1024, 4096), (1009, 2048), (3072, 4096)])
@pytest.mark.parametrize("training", [False, True])
def test_lengths_with_a_plan_of_their_own(tmp_path: Path, tokens: int, positions: int, training: bool) -> None:
    model = theirs("Model", max_position_embeddings=positions, block_size=64, num_random_blocks=3, num_hidden_layers=1)
    ours, (mine, yours) = loaded(model, tmp_path).train(training), inputs([tokens])
    with torch.no_grad():
        assert_close(ours(**mine).hidden, model.train(training)(**yours).last_hidden_state, "hidden", 1e-5)


def test_gradients_where_a_drawn_block_is_seen_twice(tmp_path: Path) -> None:
    model = theirs("Model", max_position_embeddings=1024, block_size=64, num_random_blocks=3, num_hidden_layers=1)
    ours, (mine, yours) = exact(model, tmp_path).train(), inputs([1024])
    assert BigBirdBlocks(64, 3, 3, 1024, 0, training=True).repeated_blocks(1024)
    assert_same(ours, model, ours(**mine).hidden, model.train()(**yours).last_hidden_state)


def test_masked_words(tmp_path: Path) -> None:
    model = theirs("ForMaskedLM")
    ours, (mine, yours) = exact(model, tmp_path), inputs([64, 51])
    assert_same(ours, model, ours(**mine).logits, model(**yours).logits, mine["lengths"])
    assert_writes_back(ours.float(), model.float(), tmp_path, **yours)


def test_pretraining(tmp_path: Path) -> None:
    model = theirs("ForPreTraining")
    ours, (mine, yours) = exact(model, tmp_path), inputs([64, 51])
    assert_same(ours, model, ours(**mine).logits, model(**yours).prediction_logits, mine["lengths"])


def test_classes_of_texts(tmp_path: Path) -> None:
    model = theirs("ForSequenceClassification", num_labels=5)
    ours, (mine, yours) = exact(model, tmp_path), inputs([64, 51])
    assert_same(ours, model, ours(**mine).logits, model(**yours).logits)
    assert_writes_back(ours.float(), model.float(), tmp_path, **yours)


def test_classes_of_tokens(tmp_path: Path) -> None:
    model = theirs("ForTokenClassification", num_labels=5)
    ours, (mine, yours) = exact(model, tmp_path), inputs([64, 51])
    assert_same(ours, model, ours(**mine).logits, model(**yours).logits, mine["lengths"])
    assert_writes_back(ours.float(), model.float(), tmp_path, **yours)


def test_what_padding_holds_never_matters(tmp_path: Path) -> None:
    ours, (mine, _) = loaded(theirs("Model"), tmp_path), inputs([64, 51])
    other = mine["tokens"].clone()
    other[1, 51:] = 7
    assert torch.equal(ours(**mine).hidden, ours(**{**mine, "tokens": other}).hidden)


@pytest.mark.parametrize("training", [False, True])
def test_score_equals_its_definition(training: bool) -> None:
    blocks = BigBirdBlocks(64, 3, 2, 1024, 1, training)
    q, k, v = torch.randn(3, 1, 2, 1024, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    score = BigBirdDot(blocks=blocks)
    actual, wanted = (rg.attend(q, k, v, score=score, mask=blocks, backend=name) for name in ("blockwise", "reference"))
    assert_close(actual, wanted, "output", 1e-9)
    copies = blocks.visits(1024)[0, 0, 5].repeat_interleave(64)  # how many copies of each key a query of block 5 has
    weights = (q[0, 0, 5 * 64] @ k[0, 0].T / 8**0.5).exp() * copies
    assert_close(actual[0, 0, 5 * 64], weights @ v[0, 0] / weights.sum(), "by hand", 1e-9)


@pytest.mark.parametrize("training", [False, True])
def test_tiles_agree_with_pairs(training: bool) -> None:
    from regard.attention.parts.mask import ALL, NONE, PairGrid, Tiling

    mask = BigBirdBlocks(5, 2, 3, 131, 1, training)
    grid = PairGrid(63, 63, heads=3)
    tiles = mask.tiles(Tiling(grid, 7, 4))
    pairs = mask.permits(*grid.indices(), grid).expand(1, tiles.shape[1], 63, 63)
    padded = torch.nn.functional.pad(pairs.float(), (0, 1))
    inside = padded.unflatten(-1, (16, 4)).unflatten(-3, (9, 7))  # [1, heads, 9, 7, 16, 4]
    count, size = inside.sum((3, 5)), torch.full((9, 16), 28.0).index_fill_(1, torch.tensor([15]), 21.0)
    assert torch.equal(tiles == NONE, count == 0) and torch.equal(tiles == ALL, count == size)


@pytest.mark.parametrize("training", [False, True])
def test_compiles_without_breaks(training: bool) -> None:
    sizes = {"layers": 1, "dim": 8, "heads": 2, "hidden": 8, "vocabulary": 41, "positions": 99, "block": 3, "random": 1}
    model = bigbird(**sizes, dropout=0.0).build().train(training)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for lengths in ([40, 22], [31, 8]):
        mine, yours = inputs(lengths)
        real = yours["attention_mask"].bool()
        assert_close(compiled(**mine).hidden[real], model(**mine).hidden[real], "compiled", 1e-5)


def test_drawing_leaves_the_world_alone() -> None:
    np.random.seed(5)
    wanted = np.random.rand()
    np.random.seed(5)
    BigBirdBlocks(3, 2, 3, 131, 1, training=True).visits(62)
    assert np.random.rand() == wanted


def test_refusals() -> None:
    mask = BigBirdBlocks(5, 2, 3, 131, 0)
    with pytest.raises(BadInput, match="4 queries, 9 keys"):
        rg.attend(torch.randn(1, 3, 4, 8), *torch.randn(2, 1, 3, 9, 8), mask=mask)
    with pytest.raises(BadInput, match="block is 0"):
        BigBirdBlocks(0, 2, 3, 131, 0)


def test_published_size() -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in bigbird().build().parameters()) == 127_468_800
