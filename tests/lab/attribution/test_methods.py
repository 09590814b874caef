"""The readings equal their definitions, computed another way."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import spearmanr

from regard import BadInput
from regard.lab.attribution.ablation import ablate, ablation_methods
from regard.lab.attribution.methods import (
    compare_prediction,
    edit_all_heads,
    head_effects,
    mean_row,
    predict_edited,
    rank_correlations,
    run_pass,
)
from regard.lab.attribution.target import AttributionTarget, TargetChoice
from regard.models.config import SequenceConfig
from regard.models.heads import ClassificationHeadConfig, LMHeadConfig
from regard.nn.block import StackConfig
from regard.nn.embeddings.text import TextEmbeddingConfig
from regard.nn.hooks.edit import edit

TOKENS = torch.tensor([[3, 7, 1, 9, 4, 6, 2]])
KINDS = ("class", "mean", "attention", "tag", "next", "vector")


def make_model(kind: str, mask: str | None = None):
    """A small model whose answer is of that kind."""
    torch.manual_seed(3)
    heads = {
        "class": ClassificationHeadConfig(3, 16),
        "mean": ClassificationHeadConfig(3, 16, pool="mean"),
        "attention": ClassificationHeadConfig(3, 16, pool="attention"),
        "tag": ClassificationHeadConfig(5, 16, per_token=True),
        "next": LMHeadConfig(11, 16),
        "vector": None,
    }
    mask = "Causal()" if kind == "next" else mask
    stack = StackConfig(dim=16, layers=2, heads=2, hidden=32, mask=mask)
    model = SequenceConfig(TextEmbeddingConfig(11, 16, positions=16), stack, head=heads[kind]).build().eval()
    for name, weight in model.named_parameters():
        if ".q." in name or ".k." in name:
            weight.data.mul_(4.0)
    return model


def ln(model, tokens, kind, place, label):
    """The score by hand."""
    output = model(tokens=tokens)
    if kind == "vector":
        return output.hidden.mean(1)[0]
    logits = output.logits[0] if place is None else output.logits[0, place]
    return logits.log_softmax(-1)[label]


@pytest.mark.parametrize("kind", KINDS)
def test_the_score_is_what_the_model_says(kind):
    asked = AttributionTarget(make_model(kind), {"tokens": TOKENS})
    if kind == "vector":
        assert asked.label is None and math.isclose(asked.initial_score, 1.0, rel_tol=1e-6)
        return
    with torch.no_grad():  # the tag that the model is least certain of, the last token's successor
        certainty = asked.model(tokens=TOKENS).logits.softmax(-1).amax(-1)[0]
    assert asked.position == {"tag": int(certainty.argmin()), "next": 6}.get(kind)
    assert asked.label == int(asked.prediction.argmax())
    with torch.no_grad():
        assert math.isclose(
            asked.initial_score, float(ln(asked.model, TOKENS, kind, asked.position, asked.label)), abs_tol=1e-6
        )
    assert math.isclose(float(asked.prediction.exp().sum()), 1.0, rel_tol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_the_place_that_is_read(kind):
    """Rows of raw weights and rollout sum to one, and are those of the token that the answer is read off."""
    seen = run_pass(
        AttributionTarget(make_model(kind), {"tokens": TOKENS}, TargetChoice(position=2 if kind == "tag" else None))
    )
    assert math.isclose(float(seen.readout.sum()), 1.0, rel_tol=1e-5)
    wanted = {"class": 0, "tag": 2, "next": 6}.get(kind)
    if wanted is not None:
        assert seen.readout.argmax() == wanted and seen.readout.max() == 1.0
    for name in seen.names:
        row = seen.raw(name, None)
        assert row.shape == (7,) and math.isclose(float(row.sum()), 1.0, rel_tol=1e-5)
        assert math.isclose(float(seen.rollout(name).sum()), 1.0, rel_tol=1e-5)
        assert (seen.value(name, None) >= 0).all()
    if wanted is not None:
        weights = seen.views[seen.names[0]].weights[0, 1, wanted]
        assert torch.equal(seen.raw(seen.names[0], 1), weights.float())


def test_gradient_is_the_slope_of_the_score():
    """Σ over keys of weight · slope equals the change of the score when a head's whole output is made a bit larger."""
    model = make_model("class")
    asked = AttributionTarget(model, {"tokens": TOKENS})
    run = run_pass(asked)
    name, head, step = run.names[1], 1, 1e-3

    def score_at(factor):
        def scale_output(module, args, kwargs, output):
            output = output.clone()
            output[:, head] *= factor
            return output

        handle = dict(model.named_modules())[name + ".attend"].register_forward_hook(scale_output, with_kwargs=True)
        with torch.no_grad():
            score = asked.score(asked.predict(asked.inputs, None))[0].double()
        handle.remove()
        return float(score)

    slope = (score_at(1 + step) - score_at(1 - step)) / (2 * step)
    assert math.isclose(float(run.gradient(name, head).sum()), slope, rel_tol=2e-2, abs_tol=1e-4)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_removal_runs_the_model_without_the_token(kind):
    model = make_model(kind)
    place = {"tag": 3, "next": 6}.get(kind)
    asked = AttributionTarget(model, {"tokens": TOKENS}, TargetChoice(position=place))
    effect = ablate(asked, "delete")
    for gone in range(7):
        short = torch.cat([TOKENS[:, :gone], TOKENS[:, gone + 1 :]], 1)
        at = None if place is None else 5 if kind == "next" else place - (gone < place)
        if kind == "tag" and gone == place:
            assert effect[gone].isnan()
            continue
        with torch.no_grad():
            after = ln(model, short, kind, at, asked.label)
        if kind == "vector":
            after = after @ asked.prediction / asked.prediction.square().sum()
        assert math.isclose(float(effect[gone]), asked.initial_score - float(after), abs_tol=2e-6), gone


def test_a_hidden_token_reaches_nobody():
    """What a token is does not matter while it is hidden from every head, except to itself."""
    model = make_model("class")
    for gone in (2, 5):
        other = TOKENS.clone()
        other[0, gone] = 8
        before, after = (AttributionTarget(model, {"tokens": x}, TargetChoice(label=1)) for x in (TOKENS, other))
        scores = [asked.initial_score - float(ablate(asked, "hide")[gone]) for asked in (before, after)]
        assert math.isclose(*scores, abs_tol=1e-6)
        assert abs(before.initial_score - after.initial_score) > 1e-4


def test_how_tokens_may_be_removed():
    asked = AttributionTarget(make_model("class"), {"tokens": TOKENS})
    assert ablation_methods(asked) == ["delete", "hide"]
    with pytest.raises(BadInput, match="delete or hide"):
        ablate(asked, "replace")
    with pytest.raises(BadInput, match="There is no label 9"):
        AttributionTarget(make_model("class"), {"tokens": TOKENS}, TargetChoice(label=9))
    with pytest.raises(BadInput, match="There is no position 30"):
        AttributionTarget(make_model("tag"), {"tokens": TOKENS}, TargetChoice(position=30))
    with pytest.raises(BadInput, match="the limit is 256"):
        AttributionTarget(make_model("class"), {"tokens": torch.ones(1, 300, dtype=torch.long)})


def test_rank_correlation_is_scipys_with_ties_and_gaps():
    torch.manual_seed(0)
    x = torch.tensor([1.0, 1.0, -2.0, 3.0, 0.0, 0.0, math.nan, 5.0])
    y = torch.tensor([0.5, -2.0, 2.0, 2.0, 0.0, 7.0, 1.0, -1.0])
    known = ~x.isnan()
    for signed in (False, True):
        a, b = (z[known] if signed else z[known].abs() for z in (x, y))
        run = rank_correlations({"x": x, "y": y}, signed)["x"]["y"]
        assert math.isclose(run, spearmanr(a.numpy(), b.numpy()).statistic, abs_tol=1e-9)


def test_changes_act_on_the_model():
    model = make_model("class")
    asked = AttributionTarget(model, {"tokens": TOKENS})
    name = next(iter(asked.heads))
    with torch.no_grad(), edit(model, {name: {1: "uniform"}}):
        wanted = model(tokens=TOKENS).logits[0].log_softmax(-1)
    assert torch.equal(predict_edited(asked, {name: {1: "uniform"}}), wanted)
    assert compare_prediction(asked, asked.prediction)["distance"] == 0.0
    after = predict_edited(asked, edit_all_heads(asked, "silent"))
    run = compare_prediction(asked, after)
    assert math.isclose(run["distance"], float((after.exp() - asked.prediction.exp()).abs().sum() / 2), rel_tol=1e-6)
    assert math.isclose(run["change"], float(after[asked.label] - asked.prediction[asked.label]), abs_tol=1e-6)
    same = [predict_edited(asked, edit_all_heads(asked, "shuffle"), seed) for seed in (4, 4, 5)]
    assert torch.equal(same[0], same[1]) and not torch.equal(same[0], same[2])
    with pytest.raises(BadInput, match="silent, uniform, shuffle, mean"):
        predict_edited(asked, {name: {0: "loud"}})


def test_each_head_alone():
    asked = AttributionTarget(make_model("attention"), {"tokens": TOKENS})
    run = head_effects(asked, "silent")
    assert run.shape == (3, 2) and run[2, 1].isnan()  # the pooling has one head
    name = list(asked.heads)[1]
    wanted = compare_prediction(asked, predict_edited(asked, {name: {1: "silent"}}))["change"]
    assert math.isclose(float(run[1, 1]), wanted, abs_tol=1e-6)


def test_the_mean_head_says_the_same_everywhere():
    weights = torch.rand(1, 5, 5).softmax(-1)
    values = torch.randn(1, 5, 3)
    mixed = mean_row(weights) @ values
    assert torch.allclose(mixed, (weights @ values).mean(1, keepdim=True).expand_as(mixed), atol=1e-6)
    causal = torch.rand(1, 5, 5).tril()
    causal = causal / causal.sum(-1, keepdim=True)
    assert mean_row(causal).triu(1).abs().max() == 0
    assert torch.allclose(mean_row(causal).sum(-1), torch.ones(1, 5))
