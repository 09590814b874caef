"""Vectors of texts and images: equal to what transformers computes, searched, cached."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import regard as rg
from regard.cli import app
from regard.inference.vector_index import index_inputs
from regard.models.families.bert import bert
from regard.models.families.clip import clip
from regard.models.tokenizers.tokenizer import Tokenizer
from regard.tasks.pretrained.embedder import Embedder, PoolingConfig
from regard.tasks.pretrained.pretrained import open_checkpoint

TEXTS = ["the cat sat on the mat", "a dog", "the old man and the sea reads a long long book", "gold", ""]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT in the format of sentence-transformers."""
    path = tmp_path_factory.mktemp("sentences")
    torch.manual_seed(0)
    tokenizer = Tokenizer.train(TEXTS * 3, unit="wordpiece", size=120, lower=True)
    model = bert(layers=2, dim=24, heads=3, hidden=40, vocabulary=tokenizer.size, positions=16).build()
    model.tokenizer = tokenizer
    model.save(path, format="huggingface")
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    modules = [
        {"idx": n, "name": str(n), "path": place, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, place) in enumerate(kinds)
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    (path / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    return path


def reference(folder: Path, pooling: str, normalize: bool, max_length: int) -> torch.Tensor:
    """The vectors that transformers computes, one text at a time."""
    from transformers import BertModel

    model, tokenizer = BertModel.from_pretrained(folder).eval(), rg.load(folder).tokenizer
    assert tokenizer is not None
    rows = []
    for text in TEXTS:
        tokens = tokenizer([text], max_length=max_length).tokens
        with torch.no_grad():
            hidden = model(tokens).last_hidden_state[0]
        vector = {"mean": hidden.mean(0), "first": hidden[0], "last": hidden[-1], "max": hidden.amax(0)}[pooling]
        rows.append(vector / vector.norm() if normalize else vector)
    return torch.stack(rows)


def test_folder_says_how_tokens_are_pooled(folder: Path) -> None:
    assert PoolingConfig.from_folder(folder) == PoolingConfig("mean", True, 9)


@pytest.mark.parametrize("pooling", ["mean", "first", "last", "max"])
@pytest.mark.parametrize("normalize", [True, False])
def test_vectors_equal_transformers(folder: Path, pooling: str, normalize: bool) -> None:
    model = rg.load(folder)
    embedder = Embedder(model, model.tokenizer, PoolingConfig(pooling, normalize, 9))  # type: ignore[arg-type]
    torch.testing.assert_close(embedder.embed(TEXTS), reference(folder, pooling, normalize, 9), atol=1e-5, rtol=0)


def test_order_of_inputs_is_kept_over_batches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = Embedder.from_pretrained(open_checkpoint(folder))
    whole = embedder.embed(TEXTS)
    monkeypatch.setattr("regard.tasks.pretrained.embedder.CPU_TOKENS", 1)
    torch.testing.assert_close(embedder.embed(TEXTS), whole, atol=1e-6, rtol=0)


def test_other_layers_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]')
    with pytest.raises(rg.Unsupported, match="has a layer Dense"):
        PoolingConfig.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("modules.json", '[{"type": "x.Pooling", "path": "../other"}]', "leads out of its folder"),
        ("modules.json", '[{"type": "x.Pooling", "path": "/etc"}]', "leads out of its folder"),
        ("sentence_bert_config.json", '{"max_seq_length": "x"}', "max_seq_length is 'x'"),
    ],
)
def test_what_a_folder_says_is_checked(tmp_path: Path, file: str, text: str, message: str) -> None:
    (tmp_path / "modules.json").write_text("[]")
    (tmp_path / file).write_text(text)
    with pytest.raises(rg.BadInput, match=message):
        PoolingConfig.from_folder(tmp_path)


def test_images_need_an_encoder_of_images(folder: Path) -> None:
    with pytest.raises(rg.BadInput, match="reads texts alone"):
        Embedder.from_pretrained(open_checkpoint(folder)).embed([torch.zeros(3, 8, 8, dtype=torch.uint8)])


def test_images_and_texts_of_a_dual_encoder() -> None:
    torch.manual_seed(0)
    tokenizer = Tokenizer.train(TEXTS, unit="words", size=60)
    tower = {"layers": 1, "dim": 12, "heads": 3, "hidden": 20}
    made = clip(text=tower, image=tower, vocabulary=tokenizer.size, positions=16, end=3, size=8, patch=4, shared=6)
    model = made.build().eval()
    from regard.tasks.pretrained.pixels import ImageProcessor

    processor = ImageProcessor.from_config({}, (8, 8), 3)
    image = torch.randint(0, 256, (3, 8, 8), dtype=torch.uint8)
    embedder = Embedder(model, tokenizer, PoolingConfig(), processor)
    vectors = embedder.embed([image, "the cat", image])
    assert vectors.shape == (3, 6) and torch.equal(vectors[0], vectors[2])
    with torch.no_grad():
        expected = model(images=((image / 255 - 0.5) / 0.5)[None]).image
    torch.testing.assert_close(vectors[:1], expected)


def test_cached_vectors_are_used_until_something_changes(folder: Path, tmp_path: Path) -> None:
    embedder, cache = Embedder.from_pretrained(open_checkpoint(folder)), tmp_path / "vectors.npy"
    index, cached = index_inputs(embedder, folder, TEXTS, cache)
    assert not cached and index.search(embedder.embed("gold")[0], top=2)[0].text == "gold"
    again, cached = index_inputs(embedder, folder, TEXTS, cache)
    assert cached and torch.equal(again.vectors, index.vectors)
    assert not index_inputs(embedder, folder, TEXTS[:-1], cache)[1]


def test_commands(folder: Path, tmp_path: Path) -> None:
    data, out = tmp_path / "texts.csv", tmp_path / "vectors.npy"
    data.write_text("id,text\n" + "".join(f"{n},{text}\n" for n, text in enumerate(TEXTS[:4])), "utf8")
    result = CliRunner().invoke(app, ["embed", str(folder), "--data", str(data), "--out", str(out)])
    assert result.exit_code == 0, result.output
    vectors = np.load(out, allow_pickle=False)
    expected = Embedder.from_pretrained(open_checkpoint(folder)).embed(TEXTS[:4]).numpy()
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    result = CliRunner().invoke(app, ["search", str(folder), "gold", "--data", str(data), "--top", "2", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found[0]["text"] == "gold" and found[0]["score"] == pytest.approx(1.0, abs=1e-3) and len(found) == 2
