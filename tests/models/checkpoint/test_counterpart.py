"""Models that were trained here, read by transformers with equal outputs, or refused with what has no counterpart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard as rg
from regard.data.images import LabelledImage
from regard.data.text import Document, LabelledText
from regard.inference.predictor import Predictor
from regard.models.heads import ClassificationHeadConfig
from regard.tasks.architecture import Architecture
from regard.tasks.classify import Classify, ClassifySettings
from regard.tasks.lm import Lm, LmSettings

transformers = pytest.importorskip("transformers")

TINY = {"dim": 16, "layers": 1, "heads": 2, "hidden": 24}
TEXTS = [LabelledText(text, label) for text, label in (("a fine film", "+"), ("a dull film", "-"))] * 3


def build(task: Any, **changes: Any) -> Any:
    torch.manual_seed(0)
    model = task.config(Architecture(**{**TINY, **changes})).build().eval()
    model.tokenizer, model.rules = task.tokenizer, task.rules
    return model


def test_a_language_model_is_a_gpt2(tmp_path: Path) -> None:
    document = Document("to be or not to be\n" * 20, "play.txt")
    task = Lm.prepare([document], LmSettings(unit="words", vocab_size=30, context=12))
    model = build(task, positions="learned")
    Predictor("lm", task, model).save(tmp_path, format="huggingface")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(theirs).__name__ == "GPT2LMHeadModel"
    tokens = torch.randint(0, task.tokenizer.size, (2, 9))
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, model(tokens=tokens).logits, rtol=1e-4, atol=1e-5)


def test_an_image_classifier_is_a_vit(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    images = [torch.randint(0, 255, (3, 8, 8), dtype=torch.uint8, generator=generator) for _ in range(4)]
    examples = [LabelledImage(image, "ab"[n % 2]) for n, image in enumerate(images)]
    task = Classify.prepare(examples, ClassifySettings(pool="first", patch_size=4))
    model = build(task, hidden=None)
    Predictor("vit", task, model).save(tmp_path, format="huggingface")
    theirs = transformers.AutoModelForImageClassification.from_pretrained(tmp_path).eval()
    assert type(theirs).__name__ == "ViTForImageClassification" and theirs.config.id2label == {0: "a", 1: "b"}
    pixels = torch.randn(2, 3, 8, 8, generator=generator)
    with torch.no_grad():
        torch.testing.assert_close(theirs(pixels).logits, model(images=pixels).logits, rtol=1e-4, atol=1e-5)
    assert rg.open(tmp_path).predict(np.zeros((8, 8, 3), np.uint8)).label in "ab"


def test_a_text_classifier_with_a_pooler_is_a_bert(tmp_path: Path) -> None:
    task = Classify.prepare(TEXTS, ClassifySettings(pool="pooler", unit="wordpiece", vocab_size=40))
    config = task.config(Architecture(**TINY, positions="learned", pre_norm=False))
    bert = rg.models.bert(**TINY, vocabulary=config.embed.vocabulary, positions=32, head=config.head)
    torch.manual_seed(0)
    model = bert.build().eval()
    model.tokenizer = task.tokenizer
    Predictor("bert", task, model).save(tmp_path, format="huggingface")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    encoded = model.tokenizer(["a fine film"])
    with torch.no_grad():
        ours = model(**encoded.inputs).logits
        torch.testing.assert_close(theirs(encoded.tokens).logits, ours, rtol=1e-4, atol=1e-5)
    assert rg.open(tmp_path).labels == ["+", "-"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pool": "mean"}, "no counterpart of .*"),
        ({"pool": "first", "ensemble": 2}, "no counterpart of Ensemble models .several networks"),
    ],
)
def test_what_has_no_counterpart_is_named(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = build(Classify.prepare(TEXTS, ClassifySettings(**settings)))
    with pytest.raises(rg.Unsupported, match=message):
        model.save(tmp_path, format="huggingface")
    assert not list(tmp_path.iterdir())


def test_mean_pooling_of_a_bert_is_not_silently_changed(tmp_path: Path) -> None:
    """Their class pools the first token: saving the head anyway would change every output."""
    head = ClassificationHeadConfig(2, 16, pool="mean")
    model = rg.models.bert(**TINY, vocabulary=40, positions=32, head=head).build()
    with pytest.raises(rg.Unsupported, match=r"head\.pool = 'mean' \(theirs: 'pooler'\)"):
        model.save(tmp_path, format="huggingface")


def test_uploading_needs_a_name_and_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = rg.models.bert(**TINY, vocabulary=40, positions=32).build()
    task: Any = Classify.prepare(TEXTS, ClassifySettings())
    with pytest.raises(rg.BadInput, match="Give owner/name"):
        Predictor("x", task, model).push("no name")
    huggingface_hub = pytest.importorskip("huggingface_hub")

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", refuse)
    with pytest.raises(rg.RegardError, match=r"was not uploaded: no network.*hf auth login"):
        Predictor("x", task, model).push("me/mine")
