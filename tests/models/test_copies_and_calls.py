"""Copies of every model give equal outputs; arguments of a call that have no name, or that of another library."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

import regard as rg
from regard import models
from regard.assets import list_assets
from regard.tasks.results import Result

from .test_all_models import PRESETS, main_output, make_model, noise, words

every = pytest.mark.parametrize("name", PRESETS)


@every
def test_pickled_and_copied_models_give_equal_outputs(name: str) -> None:
    """Before and after a call, which fills caches; a copy shares no weight with its model."""
    model, inputs = make_model(name), PRESETS[name].inputs
    early = pickle.dumps(model)
    expected = main_output(model(**inputs))
    copies: list[Any] = [pickle.loads(early), pickle.loads(pickle.dumps(model)), copy.deepcopy(model)]
    for twin in copies:
        assert torch.equal(main_output(twin(**inputs)), expected) and twin.config == model.config
    with torch.no_grad():
        for parameter in copies[2].parameters():
            parameter.zero_()
    assert torch.equal(main_output(model(**inputs)), expected)


WITH_FILES = ("digits", "spoken-digits", "karate")


@pytest.mark.parametrize("name", ["tagger", "tagger-zh", "translator", "digits", "spoken-digits", "karate", "poet"])
def test_shipped_models_can_be_pickled(name: str) -> None:
    """The whole predictor: model, tokenizer and task, as a process pool would send it."""
    predictor = rg.open(name, {"max_new": 4} if name == "poet" else None)
    files = sorted((list_assets()[name] / "examples").glob("*")) if name in WITH_FILES else []
    given = files[0] if files else "The cat sat ."
    expected = predictor.predict(given)
    twin = pickle.loads(pickle.dumps(predictor))
    assert isinstance(expected, Result) and twin.predict(given) == expected
    assert pickle.loads(pickle.dumps(expected)) == expected


def test_one_input_needs_no_name() -> None:
    bert, vit = make_model("bert"), make_model("vit")
    assert torch.equal(bert(words()).hidden, bert(tokens=words()).hidden)
    lengths = torch.tensor([13, 7, 10])
    assert torch.equal(bert(words(), lengths=lengths).hidden, bert(tokens=words(), lengths=lengths).hidden)
    images = noise(2, 3, 24, 24)
    assert torch.equal(vit(images).logits, vit(images=images).logits)
    detr = make_model("detr")
    assert torch.equal(detr(noise(2, 3, 32, 24)).logits, detr(images=noise(2, 3, 32, 24)).logits)


@pytest.mark.parametrize(
    ("name", "call", "message"),
    [
        ("bert", {"input_ids": words()}, "instead of input_ids give tokens=input_ids"),
        ("bert", {"tokens": words(), "attention_mask": words()}, r"give lengths=attention_mask\.sum\(1\)"),
        ("vit", {"pixel_values": noise(2, 3, 24, 24)}, "give images=pixel_values"),
        ("t5", {"tokens": words(), "decoder_input_ids": words()}, "give targets=decoder_input_ids"),
        ("whisper", {"input_features": noise(2, 7, 40)}, r"give sound=input_features\.transpose"),
        ("gat", {"nodes": noise(11, 6), "edge_index": words()}, "give edges=edge_index"),
    ],
)
def test_names_of_other_libraries_are_answered_with_ours(name: str, call: dict[str, Any], message: str) -> None:
    with pytest.raises(rg.BadInput, match=message):
        make_model(name)(**call)


@pytest.mark.parametrize(
    ("name", "inputs"),
    [("bert", (words(), words())), ("bert", ("text",)), ("clip", (words(),)), ("gat", (noise(11, 6), words()))],
)
def test_inputs_without_names_that_are_ambiguous(name: str, inputs: tuple[Any, ...]) -> None:
    with pytest.raises(rg.BadInput, match="Name the arguments: model"):
        make_model(name)(*inputs)


def test_the_example_of_the_message_runs() -> None:
    input_ids, attention_mask = words(2, 5), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    model = models.bert(layers=1, dim=8, heads=2, hidden=16, vocabulary=41, positions=8).build().eval()
    hidden = model(tokens=input_ids, lengths=attention_mask.sum(1)).hidden
    assert hidden.shape == (2, 5, 8)
