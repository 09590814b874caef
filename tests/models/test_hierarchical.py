"""The hierarchical classifier: its sentences, levels, padding and saving; it learns, from files to predictions."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch

import regard as rg
from regard.data import LabelledImage, LabelledText
from regard.models.heads import ClassificationHeadConfig
from regard.models.hierarchical import (
    HierarchicalConfig,
    HierarchicalLayersConfig,
    HierarchicalModel,
    SentencePooling,
    number_sentences,
)
from regard.nn.embeddings.text import TextEmbeddingConfig
from regard.tasks.architecture import Architecture
from regard.tasks.classify import Classify, ClassifySettings

END = 2
SMALL = Architecture(model="hierarchical", dim=16, layers=1, heads=2, dropout=0.0)


def build(**fields):
    torch.manual_seed(0)
    embed = TextEmbeddingConfig(20, 8, fields.pop("positions", None))
    stack = HierarchicalLayersConfig(dim=8, layers=2, heads=2)
    return HierarchicalConfig(embed, stack, ClassificationHeadConfig(3, 8), ends=(END,), **fields).build().eval()


def test_sentences_are_numbered_and_pooled_by_themselves():
    tokens = torch.tensor([[5, 6, END, 7, END], [8, 9, 10, 11, 0]])
    ids = number_sentences(tokens, torch.tensor([5, 4]), (END,))
    assert ids.tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 0, -1]]
    x, pool = torch.randn(2, 5, 8), SentencePooling(8)
    sentences = pool(x, ids)
    alone = pool(x[:1, 3:], torch.zeros(1, 2, dtype=torch.long))
    assert sentences.shape == (2, 2, 8) and torch.allclose(sentences[0, 1], alone[0, 0], atol=1e-6)
    assert not sentences[1, 1].any()  # the second text has one sentence


def test_padding_does_not_change_the_output():
    model, tokens = build(positions="sinusoidal"), torch.tensor([[5, 6, END, 7, 8, 9, END]])
    padded = torch.cat([tokens, torch.full((1, 4), END)], dim=1)
    both = torch.cat([padded, torch.randint(3, 20, (1, 11))])
    alone, beside = model(tokens=tokens).logits, model(tokens=both, lengths=torch.tensor([7, 11])).logits
    assert torch.allclose(alone[0], beside[0], atol=1e-6)


def test_the_order_of_sentences_does_not_matter_without_positions_but_their_borders_do():
    model = build()
    first, second = [5, 6, 7, END], [8, 9, END]
    forward, backward = (model(tokens=torch.tensor([row])).logits for row in (first + second, second + first))
    assert torch.allclose(forward, backward, atol=1e-6)
    moved = model(tokens=torch.tensor([[5, 6, END, 7, 8, 9, END]])).logits  # the same tokens, another border
    assert (moved - forward).abs().max() > 1e-3


def test_every_parameter_gets_a_gradient():
    model = build(positions="sinusoidal").train()
    model(tokens=torch.tensor([[5, 6, END, 7, 8, END]]), labels=torch.tensor([1])).loss.backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    # a key's bias moves all scores of a query alike, and softmax does not notice
    assert [name for name in silent if not name.endswith((".key.bias", ".pool_key.bias"))] == []


def test_a_saved_model_gives_the_same_logits(tmp_path):
    model, tokens = build(), torch.tensor([[5, 6, END, 7, 8, END]])
    model.save(tmp_path / "model")
    assert torch.equal(rg.load(tmp_path / "model")(tokens=tokens).logits, model(tokens=tokens).logits)


def reviews(count: int, seed: int) -> list[LabelledText]:
    """Two opinions; only that of the sentence that begins with `finally` counts. A bag of words is right in half."""
    draw, examples = Random(seed), []
    for _ in range(count):
        good = draw.random() < 0.5
        words = [draw.choice(["nice", "fine"]), draw.choice(["bad", "poor"])]
        counted, other = words if good else words[::-1]
        both = [f"finally the room was {counted} .", f"once the food was {other} ."]
        draw.shuffle(both)
        examples.append(LabelledText(" ".join(both), "yes" if good else "no"))
    return examples


def test_it_learns_which_sentence_counts():
    examples, held_out = reviews(200, 0), reviews(100, 1)
    task = Classify.prepare(examples, ClassifySettings(word_dropout=0.0, nb_linear=0))
    torch.manual_seed(0)
    model = task.config(SMALL).build()
    assert isinstance(model, HierarchicalModel) and len(model.ends) == 1
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for step in range(60):
        batch = task.batch(Random(step).sample(examples, 40), Random(step))
        optimizer.zero_grad()
        (task.loss(model, batch) / task.count(batch)).backward()
        optimizer.step()
    assert task.evaluate(model.eval(), held_out).metrics["accuracy"] > 0.95


def test_it_trains_from_the_command_line(tmp_path: Path):
    from typer.testing import CliRunner

    from regard.cli import app

    for name, seed in (("train", 0), ("dev", 1)):
        lines = [f"{example.label}\t{example.text}" for example in reviews(60, seed)]
        (tmp_path / f"{name}.tsv").write_text("label\ttext\n" + "\n".join(lines) + "\n", encoding="utf8")
    files = "--train", tmp_path / "train.tsv", "--dev", tmp_path / "dev.tsv", "--out", tmp_path / "run"
    small = "--model", "hierarchical", "--set", "dim=16", "--set", "layers=1", "--set", "heads=2", "--steps", 4
    words = [str(word) for word in ("train", "classify", *files, *small, "--device", "cpu")]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 0, answer.output
    answer = CliRunner().invoke(app, ["predict", str(tmp_path / "run"), "finally the room was nice ."])
    assert answer.exit_code == 0 and ("yes" in answer.output or "no" in answer.output)


def test_what_has_no_sentences_is_refused():
    images = [LabelledImage(torch.zeros(1, 8, 8, dtype=torch.uint8), label) for label in ("a", "b")]
    with pytest.raises(rg.BadInput, match="model=hierarchical reads the sentences of texts; these files hold image"):
        Classify.prepare(images, ClassifySettings()).config(SMALL)
    with pytest.raises(rg.BadInput, match="max_affix=0"):
        Classify.prepare(reviews(9, 0), ClassifySettings(max_affix=2)).config(SMALL)
    with pytest.raises(rg.BadInput, match=r"tokens are \[1, 2, 3\]"):
        build()(tokens=torch.zeros(1, 2, 3, dtype=torch.long))
