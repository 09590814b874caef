"""The comparisons of whole models run, and refuse wrong numbers."""

import pytest
import torch

from regard.bench import models
from regard.bench.measure import WrongNumbers
from regard.bench.result import format_table

pytest.importorskip("transformers")


def test_quick_run() -> None:
    result = models.run(quick=True)
    assert [row.against.split(" ")[0] for row in result.rows if row.against] == [
        "transformers", "limit:", "recomputed", "transformers",
    ]  # fmt: skip
    assert all(row.ours > 0 and row.better and row.goal is None for row in result.rows)
    assert "greedy decoding" in format_table(result)


def test_wrong_numbers_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    right = models.encoding_calls

    def wrong(**sizes):
        calls = right(**sizes)
        return calls | {"transformers": lambda: tuple(x + 0.1 for x in calls["transformers"]())}

    monkeypatch.setattr(models, "encoding_calls", wrong)
    with pytest.raises(WrongNumbers):
        list(models.encoding_rows(models.SMALL_MINILM, 0.0))


def test_sentences_are_the_same_each_time() -> None:
    once, again = (models.random_sentences(10, 20, 50, 4) for _ in range(2))
    assert all(torch.equal(a, b) for x, y in zip(once, again, strict=True) for a, b in zip(x, y, strict=True))
    lengths = torch.cat([lengths for _, lengths in once])
    assert len(lengths) == 10 and int(lengths.min()) >= 7 and int(lengths.max()) <= 22
