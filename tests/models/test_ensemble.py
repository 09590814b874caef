"""Several models as one: who answers which row, and what they say together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regard import BadInput, load
from regard.models.baselines.linear import NBLinearConfig
from regard.models.config import SequenceConfig
from regard.models.ensemble import EnsembleConfig, EnsembleModel
from regard.models.heads import ClassificationHeadConfig
from regard.nn.block import StackConfig
from regard.nn.embeddings.text import TextEmbeddingConfig

MEMBER = SequenceConfig(
    TextEmbeddingConfig(17, 8, None), StackConfig(8, 1, 2), head=ClassificationHeadConfig(3, 8, pool="mean")
)


def draw_batch(rows: int) -> dict[str, torch.Tensor]:
    tokens = torch.randint(1, 17, (rows, 5), generator=torch.Generator().manual_seed(rows))
    return {"tokens": tokens, "lengths": torch.tensor([5, 3, 1] * rows)[:rows]}


@pytest.fixture
def model() -> EnsembleModel:
    torch.manual_seed(0)
    return EnsembleConfig(MEMBER, 3).build()


def test_together_they_say_the_mean(model: EnsembleModel, tmp_path: Path) -> None:
    given = draw_batch(7)
    output = model.eval()(**given).logits.softmax(-1)
    each = [member(**given).logits.softmax(-1) for member in model.members]
    torch.testing.assert_close(output, torch.stack(each).mean(0))
    assert not torch.allclose(each[0], each[1]), "members begin differently"
    model.save(tmp_path)
    again = load(tmp_path)
    assert again.config == model.config
    torch.testing.assert_close(again(**given).logits, model(**given).logits)


def test_while_learning_each_row_is_one_members(model: EnsembleModel) -> None:
    given = draw_batch(6)
    output = model.train()(**given).logits
    for row in range(6):
        own = model.members[row % 3](**{name: x[row : row + 1] for name, x in given.items()}).logits
        torch.testing.assert_close(output[row : row + 1], own)
    output[1::3].sum().backward()
    learned = [any(p.grad is not None and bool(p.grad.any()) for p in member.parameters()) for member in model.members]
    assert learned == [False, True, False]


def test_the_loss_is_that_of_what_is_said(model: EnsembleModel) -> None:
    given, labels = draw_batch(3), torch.tensor([0, 2, -100])
    actual = model.eval()(**given, labels=labels)
    wanted = -(actual.logits[0, 0] + actual.logits[1, 2]) / 2
    torch.testing.assert_close(actual.loss, wanted)


def test_one_beside_says_its_share() -> None:
    torch.manual_seed(0)
    model = EnsembleConfig(MEMBER, 3, NBLinearConfig(17, 50, 3), extra_weight=0.7).build()
    torch.nn.init.normal_(model.beside.weight)
    torch.nn.init.normal_(model.beside.ratios)
    given = draw_batch(8)
    output = model.eval()(**given).logits.softmax(-1)
    each = torch.stack([member(**given).logits.softmax(-1) for member in model.members]).mean(0)
    torch.testing.assert_close(output, 0.3 * each + 0.7 * model.beside(**given).logits.softmax(-1))
    dealt = model.train()(**given).logits
    rows = {name: x[3::4] for name, x in given.items()}
    torch.testing.assert_close(dealt[3::4], model.beside(**rows).logits, msg="every fourth row is its own")


def test_rows_that_cannot_be_split_are_refused(model: EnsembleModel) -> None:
    with pytest.raises(BadInput, match=r"7 rows .* 3 models"):
        model.train()(**draw_batch(7))
    with pytest.raises(BadInput, match="ensemble has 0 models"):
        EnsembleConfig(MEMBER, 0).build()
    with pytest.raises(BadInput, match=r"extra_weight is 1.5; it must be"):
        EnsembleConfig(MEMBER, 2, NBLinearConfig(17, 50, 3), extra_weight=1.5).build()
