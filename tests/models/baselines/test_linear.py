"""A line through what a text has: what it reads, what it counts, what it says."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from regard import BadInput, load
from regard.models.baselines.linear import LOGIT_SCALE, SMOOTHING, NBLinearConfig, NBLinearModel, hash_pair


def draw_batch(rows: int, columns: int) -> dict[str, torch.Tensor]:
    tokens = torch.randint(0, 17, (rows, 5, columns), generator=torch.Generator().manual_seed(rows))
    return {"tokens": tokens, "lengths": torch.tensor([5, 3, 1] * rows)[:rows]}


@pytest.fixture
def line() -> NBLinearModel:
    torch.manual_seed(0)
    model = NBLinearConfig(17, 1000, 3, columns=2, pair_columns=(0, 1)).build()
    given = draw_batch(12, 2)
    model.count([(given["tokens"], given["lengths"], torch.arange(12) % 3)])
    torch.nn.init.normal_(model.weight)
    return model


def test_it_reads_words_and_pairs_of_near_ones() -> None:
    line = NBLinearConfig(100, 1000, 2, max_gap=2).build()
    tokens = torch.tensor([[5, 1, 7, 9, 0, 0]])  # 1 is not known, 0 is padding
    actual = [row for row in line.rows(tokens)[0].tolist() if row]
    pairs = [(5, 7, 2), (7, 9, 1)]
    wanted = [100 + int(hash_pair(torch.tensor(a), torch.tensor(b), gap)) % 1000 for a, b, gap in pairs]
    assert sorted(actual) == sorted([5, 7, 9, *wanted])
    alone = [row for row in line.rows(tokens, torch.tensor([1]))[0].tolist() if row]
    assert alone == [5], "what is beyond a text's length is not read"


def test_a_word_without_the_paired_feature_stands_for_itself() -> None:
    line = NBLinearConfig(100, 100_000, 2, columns=2, pair_columns=(1,), max_gap=1).build()
    rows = line.rows(torch.tensor([[[5, 50, 99], [6, 0, 99]], [[5, 50, 99], [1, 0, 99]]]))
    pair = 100 + int(hash_pair(torch.tensor(50), torch.tensor(6), 2)) % 100_000
    assert sorted(row for row in rows[0].tolist() if row) == [5, 6, 50, pair], "the third number is not read"
    assert sorted(row for row in rows[1].tolist() if row) == [5, 50]


def test_the_same_two_in_the_other_order_or_further_apart_are_another_pair() -> None:
    a, b = torch.arange(2, 302), torch.randint(2, 50_000, (300,), generator=torch.Generator().manual_seed(0))
    numbers = torch.cat([hash_pair(a, b, 1), hash_pair(b, a, 1), hash_pair(a, b, 2)])
    assert len(numbers.unique()) == 900
    assert numbers.min() >= 0
    filled = torch.bincount(numbers % 30, minlength=30)
    assert filled.min() > 10, "all rows are used"
    assert filled.max() < 60


def test_counting_finds_the_ratios_of_naive_bayes(line: NBLinearModel) -> None:
    given, labels = draw_batch(12, 2), torch.arange(12) % 3
    texts = [set(row.tolist()) - {0} for row in line.rows(**given)]
    rows = sorted(set().union(*texts))
    had = {
        n: [sum(n in text for text, label in zip(texts, labels, strict=True) if label == c) for c in range(3)]
        for n in rows
    }
    added = SMOOTHING * len(line.ratios)
    for c in range(3):
        own, others = (
            sum(had[n][k] for n in rows for k in range(3) if (k == c) == same) + added for same in (True, False)
        )
        for n in rows:
            rest = sum(had[n]) - had[n][c]
            wanted = math.log((had[n][c] + SMOOTHING) / own) - math.log((rest + SMOOTHING) / others)
            assert float(line.ratios[n, c]) == pytest.approx(wanted, abs=1e-4)
    never = [n for n in range(len(line.ratios)) if n not in had]
    assert not line.ratios[never].any()


def test_it_says_what_its_formula_says(line: NBLinearModel, tmp_path: Path) -> None:
    given = draw_batch(7, 2)
    output = line(**given, labels=torch.tensor([0, 1, 2, 0, 1, 2, -100]))
    for text, row in enumerate(line.rows(**given)):
        r, w = line.ratios[row[row > 0]], line.weight[row[row > 0]]
        wanted = LOGIT_SCALE * (r * w).sum(0) / (r**2).sum(0).sqrt().clamp(min=1e-6) + line.bias
        torch.testing.assert_close(output.logits[text], wanted)
    chosen = output.logits[:6].log_softmax(-1)[torch.arange(6), torch.arange(6) % 3]
    torch.testing.assert_close(output.loss, -chosen.mean())
    line.save(tmp_path)
    again = load(tmp_path)
    assert again.config == line.config
    torch.testing.assert_close(again(**given).logits, output.logits)


def test_a_text_of_which_nothing_is_known_has_the_bias(line: NBLinearModel) -> None:
    line.bias.data = torch.tensor([1.0, 2.0, 3.0])
    output = line(tokens=torch.tensor([[[1, 0]]]), lengths=torch.tensor([1])).logits
    torch.testing.assert_close(output, torch.tensor([[1.0, 2.0, 3.0]]))


def test_pairs_need_rows() -> None:
    with pytest.raises(BadInput, match="hashed to 0 rows"):
        NBLinearConfig(5, 0, 2).build()
