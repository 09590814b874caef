"""`rg.open`: runs, shipped models and Hugging Face folders answer one input or many with typed results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import regard as rg
from regard.assets import list_assets
from regard.tasks.results import Classification, GeneratedText, NodeLabels, Regression, Tagging

transformers = pytest.importorskip("transformers")

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "a", "mat", "fine", "film", "##s")


def save_bert(folder: Path, name: str, labels: list[str] | None = None, **sizes) -> Path:
    """A small random BERT of transformers with its tokenizer."""
    torch.manual_seed(0)
    names = {"id2label": dict(enumerate(labels)), "label2id": {n: i for i, n in enumerate(labels)}} if labels else {}
    config = transformers.BertConfig(
        **{"vocab_size": len(WORDS), "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, **sizes},
        intermediate_size=32, max_position_embeddings=12, initializer_range=0.5, **names,
    )  # fmt: skip
    getattr(transformers, name)(config).eval().save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def test_one_text_and_many() -> None:
    tagger = rg.open("tagger")
    one = tagger.predict("The cat sat .")
    assert isinstance(one, Tagging) and one.tags == ("DET", "NOUN", "VERB", "PUNCT")
    forms = [["The cat sat ."], ("The cat sat .",), iter(["The cat sat ."]), np.array(["The cat sat ."])]
    assert all(tagger.predict(form) == [one] for form in forms)
    assert tagger.predict({"text": "The cat sat ."}) == one and tagger.predict([]) == []
    assert tagger.labels is not None and "NOUN" in tagger.labels and "tagger" in repr(tagger)


def test_images_by_path_and_in_memory() -> None:
    digits = rg.open("digits")
    paths = sorted((list_assets()["digits"] / "examples").glob("*.png"))[:2]
    by_path = digits.predict(paths)
    array = np.array(Image.open(paths[0]).convert("L"))
    for form in (array, torch.tensor(array), Image.open(paths[0]), paths[0].read_bytes()):
        result = digits.predict(form)
        assert isinstance(result, Classification) and result.label == by_path[0].label
        assert result.probability == pytest.approx(by_path[0].probability, abs=1e-5)
    assert sum(by_path[0].probabilities.values()) == pytest.approx(1) and by_path[0].input == str(paths[0])


def test_a_graph_is_one_result() -> None:
    result = rg.open("karate").predict(list_assets()["karate"] / "examples" / "karate.npz")
    assert isinstance(result, NodeLabels) and len(result.nodes) == 34


def test_settings_and_devices() -> None:
    writer = rg.open("writer", {"max_new": 3})
    text = writer.to("cpu").predict("to be")
    assert isinstance(text, GeneratedText) and text.input == "to be" and writer.device.type == "cpu"
    assert list(writer.stream(iter(["to be"]))) == [text]


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(rg.BadInput, match=r"does not exist. Give the folder of a run"):
        rg.open(tmp_path / "nothing")
    with pytest.raises(rg.BadInput, match=r"neither run.json nor config.json"):
        rg.open(tmp_path)
    with pytest.raises(rg.Unsupported, match=r"without a task to predict. Use rg.load"):
        rg.open(save_bert(tmp_path / "plain", "BertModel")).predict("a cat")  # it has vectors, and nothing to predict
    with pytest.raises(rg.BadInput, match=r"An input is 7 \(int\)"):
        rg.open("tagger").predict(7)


def test_a_classifier_of_transformers(tmp_path: Path) -> None:
    folder = save_bert(tmp_path, "BertForSequenceClassification", ["bad", "good", "so so"])
    texts = ["the cat sat on a mat", "fine films", "the " * 30]
    pipeline = transformers.pipeline("text-classification", str(folder), top_k=None, truncation=True, max_length=12)
    ours = rg.open(folder)
    assert ours.labels == ["bad", "good", "so so"] and ours.task.name == "classify"
    for result, theirs in zip(ours.predict(texts), pipeline(texts), strict=True):
        assert isinstance(result, Classification)
        assert result.label == theirs[0]["label"]
        assert result.probabilities == pytest.approx({row["label"]: row["score"] for row in theirs}, abs=1e-5)
    with pytest.raises(rg.BadInput, match="has no setting 'beams'"):
        rg.open(folder, {"beams": 2})


def test_a_regression_and_a_tagger_of_transformers(tmp_path: Path) -> None:
    folder = save_bert(tmp_path / "number", "BertForSequenceClassification", ["score"])
    assert isinstance(rg.open(folder).predict("the cat"), Regression)
    folder = save_bert(tmp_path / "tags", "BertForTokenClassification", ["DET", "NOUN"])
    pipeline = transformers.pipeline("token-classification", str(folder), ignore_labels=[])
    text = "the cats sat on a mat"
    result = rg.open(folder).predict(text)
    assert isinstance(result, Tagging) and result.words == tuple(text.split())
    theirs = [row["entity"] for row in pipeline(text) if not row["word"].startswith("##")]
    assert list(result.tags) == theirs


def test_an_image_classifier_of_transformers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
        id2label={0: "dark", 1: "light"}, label2id={"dark": 0, "light": 1}, initializer_range=0.5,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config).eval()
    model.save_pretrained(tmp_path)
    processor = transformers.ViTImageProcessor(size={"height": 8, "width": 8})
    processor.save_pretrained(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    with torch.no_grad():
        theirs = model(**processor(Image.fromarray(pixels), return_tensors="pt")).logits.softmax(-1)[0].tolist()
    ours = rg.open(tmp_path).predict(pixels)
    assert isinstance(ours, Classification)
    assert list(ours.probabilities.values()) == pytest.approx(theirs, abs=1e-4)


def test_importing_the_package_imports_no_training() -> None:
    code = "import sys, regard; print([m for m in sys.modules if m.startswith(('regard.train', 'regard.inference'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_saved_run_keeps_its_task(tmp_path: Path) -> None:
    """The folder is opened as the run is, and its model loaded as one."""
    tagger = rg.open("tagger")
    tagger.save(tmp_path / "saved")
    text = "The cat sat on the mat."
    again = rg.open(tmp_path / "saved")
    assert again.task.name == "tag" and again.predict(text) == tagger.predict(text)
    assert type(rg.load(tmp_path / "saved")) is type(tagger.model)
