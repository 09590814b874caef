"""Tagging of unsegmented text by the character: labels, decoding, training from files, and what comes back."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from random import Random

import pytest
import torch
from typer.testing import CliRunner

from regard.cli import app
from regard.data import Tagged
from regard.tasks.inputs.words.boundaries import allowed_transitions, best_labels, boundary_labels, join_characters
from regard.tasks.inputs.words.character_vectors import character_vectors
from regard.tasks.inputs.words.characters import COLUMNS, CharacterFeatures
from regard.tasks.inputs.words.features import PAD, UNKNOWN
from regard.tasks.texts.tag import Tag, TagSettings, strip_end

WORDS = {"甲乙": "NOUN", "丙": "VERB", "丁戊己": "ADJ", "庚": "PRON", "辛乙": "NOUN"}


def sentences(count: int, seed: int) -> list[Tagged]:
    """Random words of a small dictionary, with a final mark."""
    rng = Random(seed)
    rows = [[rng.choice(list(WORDS)) for _ in range(rng.randint(2, 7))] for _ in range(count)]
    return [Tagged((*words, "。"), (*(WORDS[word] for word in words), "PUNCT")) for words in rows]


def write_conllu(path: Path, examples: list[Tagged]) -> Path:
    lines = []
    for example in examples:
        for n, (word, tag) in enumerate(zip(example.words, example.tags, strict=True), 1):
            lines.append("\t".join([str(n), word, "_", tag, *["_"] * 6]))
        lines.append("")
    path.write_text("\n".join(lines) + "\n", "utf8")
    return path


def task(**settings) -> Tag:
    return Tag.prepare(sentences(30, 0), TagSettings(unit="characters", **settings))


def test_words_are_trained_and_predicted_from_files(tmp_path: Path) -> None:
    train, dev = (
        write_conllu(tmp_path / "a.conllu", sentences(150, 0)),
        write_conllu(tmp_path / "b.conllu", sentences(30, 1)),
    )
    run = CliRunner().invoke
    settings = [
        "unit=characters",
        "dim=32",
        "layers=1",
        "heads=2",
        "dropout=0",
        "learning_rate=0.01",
        "warmup=5",
        "batch_tokens=256",
    ]
    options = [word for setting in settings for word in ("--set", setting)]
    done = run(app, ["check", str(train), "--task", "tag", "--set", "unit=characters", "--json"])
    facts = json.loads(done.stdout)
    assert facts["characters"] > facts["words"] > facts["sentences"] == 150 and facts["unknown"] == 0
    command = ["train", "tag", "--train", str(train), "--dev", str(dev), "--epochs", "15", "--out", str(tmp_path / "r")]
    done = run(app, [*command, *options, "--json"])
    assert done.exit_code == 0, done.output
    scores = json.loads(done.stdout)
    assert scores["main"] == "tagged_f1" and 0.95 < scores["metrics"]["tagged_f1"] <= scores["metrics"]["word_f1"] <= 1
    done = run(app, ["predict", str(tmp_path / "r"), "甲乙丙丁戊己", "--json"])
    assert json.loads(done.stdout) == [{"words": ["甲乙", "丙", "丁戊己"], "tags": ["NOUN", "VERB", "ADJ"]}]
    done = run(app, ["predict", str(tmp_path / "r"), "庚丙 甲乙"])
    assert done.stdout.strip() == "庚/PRON 丙/VERB 甲乙/NOUN"
    done = run(app, ["evaluate", str(tmp_path / "r"), "--data", str(dev), "--json"])
    assert json.loads(done.stdout)["metrics"] == pytest.approx(scores["metrics"])


def test_decoding_finds_the_likeliest_whole_words() -> None:
    """Viterbi equals the best of all sequences that are whole words."""
    labels = boundary_labels(["N", "V"])
    first, after, last = allowed_transitions(labels)
    logits = torch.randn(3, 4, len(labels), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([4, 1, 3])
    for row, length, path in zip(
        logits.log_softmax(-1), lengths.tolist(), best_labels(logits, lengths, labels), strict=True
    ):
        legal = [
            sequence
            for sequence in itertools.product(range(len(labels)), repeat=length)
            if first[sequence[0]] and last[sequence[-1]] and all(after[a, b] for a, b in itertools.pairwise(sequence))
        ]
        scores = {sequence: sum(float(row[n, label]) for n, label in enumerate(sequence)) for sequence in legal}
        assert tuple(path) == max(scores, key=scores.__getitem__)
        assert len(path) == length


def test_a_blank_ends_a_word_and_inner_blanks_are_removed(tmp_path: Path) -> None:
    assert join_characters("甲乙丙", ("B-NOUN", "E-NOUN", "S-VERB"), breaks={1}).words == ("甲", "乙", "丙")
    path = tmp_path / "a.conllu"
    path.write_text("1\tNew York\t_\tPROPN\t_\t_\t_\t_\t_\t_\n\n", "utf8")
    settings = TagSettings(unit="characters")
    assert Tag.read([path], settings).examples[0].words == ("NewYork",)
    assert task().token_spans("甲 乙丙") == [(0, 1), (2, 3), (3, 4)]


def test_a_character_is_known_by_itself_its_pairs_and_its_class() -> None:
    features = CharacterFeatures.from_rows(["甲乙", "甲乙", "3甲"], min_count=1)
    tokens = features.batch(["甲乙", "乙?"])["tokens"]
    assert tokens.shape == (2, 2, COLUMNS)
    name = {n: item for item, n in features.number.items()}
    assert [name[n] for n in tokens[0, 0].tolist()] == ["甲", "<^甲", ">甲乙", "#c"]
    assert tokens[1, 1, 0] == UNKNOWN and tokens[1, 1, 1] == PAD, "a new character, a new pair"
    again = CharacterFeatures.from_dict(json.loads(json.dumps(features.as_dict())))
    assert torch.equal(again.batch(["甲乙"])["tokens"], features.batch(["甲乙"])["tokens"])


def test_rare_characters_are_dropped_more_often_in_training() -> None:
    features = CharacterFeatures.from_rows(["甲" * 99 + "乙"], min_count=1)
    rng, row = Random(0), "甲" * 500 + "乙" * 500
    tokens = features.batch([row], rng, 0.0, 1.0)["tokens"][0, :, 0]
    assert (tokens[:500] == UNKNOWN).float().mean() < 0.05 < 0.4 < (tokens[500:] == UNKNOWN).float().mean() < 0.6
    assert not (features.batch([row])["tokens"][..., 0] == UNKNOWN).any()


def test_vectors_of_plain_text_start_the_embedding(tmp_path: Path) -> None:
    """Characters between the same neighbours get similar vectors, and the model begins with them."""
    rng = Random(0)
    texts = ["".join(rng.choice(pair) for pair in ("甲乙", "丙丁", "戊己")) for _ in range(400)]
    number = {c: n for n, c in enumerate("甲乙丙丁戊己", 1)}
    vectors = torch.nn.functional.normalize(character_vectors(texts, number, 4), dim=1)
    assert vectors[1] @ vectors[2] > 0.9 > 0.5 > vectors[1] @ vectors[3]
    (tmp_path / "t.txt").write_text("\n".join(["庚甲乙丙", "庚辛乙丙", "壬壬壬壬壬壬"] * 20), "utf8")
    from regard.tasks.architecture import Architecture

    ours = task(unlabelled_text=str(tmp_path / "t.txt"), word_dim=4)
    assert "壬" in ours.features.number, "a character of the texts alone"  # type: ignore[union-attr]
    model = ours.config(Architecture(dim=8, layers=1, heads=2)).build()
    ours.initialize(model)
    expected = ours.features.vectors(4)  # type: ignore[union-attr]
    n = ours.features.number["甲"]  # type: ignore[union-attr]
    assert torch.allclose(model.embed.words.weight[n].detach(), expected[n], atol=1e-5)


def test_final_marks_are_left_out_of_a_share_of_sentences() -> None:
    assert strip_end(Tagged(("。",), ("PUNCT",))).words == ("。",)
    assert strip_end(Tagged(("甲", "乙"), ("A", "B"))).words == ("甲", "乙")
    examples = sentences(400, 3)
    cut, whole = task(punctuation_dropout=0.5), task()
    lengths = cut.batch(examples, Random(0))["lengths"], whole.batch(examples, Random(0))["lengths"]
    assert ((lengths[1] - lengths[0]) == 1).float().mean() == pytest.approx(0.5, abs=0.1)
    assert torch.equal(cut.batch(examples)["lengths"], lengths[1]), "nothing is left out but in training"


def test_r_drop_adds_a_loss_where_dropout_differs() -> None:
    from regard.tasks.architecture import Architecture

    plain, twice = task(), task(r_drop=5.0)
    torch.manual_seed(0)
    model = plain.config(Architecture(dim=16, layers=1, heads=2, dropout=0.5)).build()
    batch = plain.batch(sentences(4, 5))
    model.eval()
    assert torch.equal(plain.loss(model, batch), twice.loss(model, batch))
    model.train()
    torch.manual_seed(1)
    with_consistency = twice.loss(model, batch)
    torch.manual_seed(1)
    twice.settings = TagSettings(unit="characters", r_drop=1e-9)
    assert with_consistency > twice.loss(model, batch)
