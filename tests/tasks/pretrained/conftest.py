"""Tiny checkpoints in Hugging Face's format, and data for them."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch

from regard.models.families.bert import bert
from regard.models.tokenizers.tokenizer import Tokenizer

ANIMALS, METALS = ("cat", "dog", "horse", "mouse", "bird"), ("iron", "gold", "zinc", "copper", "lead")


def sentences(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """(text, label): whether a text is about animals or about metals."""
    rng = Random(seed)
    rows = []
    for _ in range(count):
        label = rng.choice(("animal", "metal"))
        word = rng.choice(ANIMALS if label == "animal" else METALS)
        size, place = rng.choice(("old", "new", "small", "big")), rng.choice(("here", "there"))
        rows.append((f"the {size} {word} is {place}", label))
    return rows


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two layers with its WordPiece tokenizer."""
    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    tokenizer = Tokenizer.train([text for text, _ in sentences(200)], unit="wordpiece", size=200, lower=True)
    model = bert(layers=2, dim=32, heads=4, hidden=64, vocabulary=tokenizer.size, positions=24, dropout=0.1).build()
    torch.nn.init.normal_(model.embed.segments.weight, std=0.02)  # type: ignore[union-attr, arg-type]
    model.tokenizer = tokenizer
    model.save(folder, format="huggingface")
    return folder


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "texts.tsv"
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in sentences(120)), "utf8")
    return path
