"""A tag for every word: what is known of a word, what is forgotten while training, and words never seen."""

from __future__ import annotations

import copy
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
import torch
from typer.testing import CliRunner

from regard.cli import app
from regard.data import Tagged
from regard.data.annotations.spans import LabelledSpan, SpannedText
from regard.models.checkpoint.checkpoint import load
from regard.nn.embeddings.words import WordEmbeddingConfig
from regard.settings import load_settings
from regard.tasks.architecture import Architecture
from regard.tasks.inputs.words.features import PAD, UNKNOWN, extract_features, word_shape
from regard.tasks.texts.tag import Tag, TagSettings
from regard.train.run import RunConfig

ENDINGS = {"ing": "VERB", "ness": "NOUN", "ly": "ADV", "ous": "ADJ"}
SMALL = Architecture(dim=16, layers=1, heads=2, dropout=0.0)


def sentences(count: int, seed: int, stems: str = "bdfgklmnprst") -> list[Tagged]:
    """Words whose ending is their tag, behind stems of which there are many more than sentences."""
    draw, found = Random(seed), []
    for _ in range(count):
        ends = [draw.choice(list(ENDINGS)) for _ in range(draw.randint(1, 7))]
        words = ["".join(draw.choice(stems) for _ in range(draw.randint(2, 5))) + end for end in ends]
        found.append(Tagged(tuple(words), tuple(ENDINGS[end] for end in ends)))
    return found


def task(**settings) -> Tag:
    examples = [Tagged(("The", "the", "cats", "rats", "Cats"), ("DET", "DET", "NOUN", "NOUN", "NOUN"))]
    return Tag.prepare(examples, TagSettings(**settings))


def test_what_is_known_of_a_word() -> None:
    """Its own row, its lower case's, and those of the features that it shares with another word."""
    known = task(max_affix=3)
    back = {n: word for word, n in (known.word_features.word_number | known.word_features.feature_number).items()}
    numbers = known.word_features.encode("Cats")
    own = [back.get(n, n) for n in numbers[: 1 + known.word_features.columns]]
    assert own == ["Cats", "cats", "#Xx", "<c", "<ca", "<cat", ">s", ">ts", ">ats"]
    assert len(numbers) == 1 + known.word_features.columns + 4
    assert [back.get(n, n) for n in known.word_features.encode("bats")[:9]] == [
        UNKNOWN,
        PAD,
        "#x",
        PAD,
        PAD,
        PAD,
        ">s",
        ">ts",
        ">ats",
    ]
    assert "<rat" not in known.word_features.feature_number, "what one word alone has is its name, not a feature"
    assert [back.get(n, n) for n in known.word_features.encode("THE")[:3]] == [UNKNOWN, "the", PAD]
    assert task(max_affix=0).word_features.encode("The") == [
        task(max_affix=0).word_features.word_number["The"],
        *known.word_features.encode("The")[-3:],
    ]


@pytest.mark.parametrize("word", ["", "a", "你好", "ﬁ", "İstanbul", "3.5", "x" * 50, "🙂"])
def test_any_word_has_its_numbers(word: str) -> None:
    known = task(max_word_length=6)
    numbers = known.word_features.encode(word)
    assert len(numbers) == 1 + known.word_features.columns + min(6, len(word))
    assert max(numbers[: 1 + known.word_features.columns]) < 2 + len(known.word_features.words) + len(
        known.word_features.features
    )
    assert len(extract_features(word, 4)) == known.word_features.columns - 1 and len(word_shape(word)) <= len(word)


def share_lost(known: Tag, word: str, draw: Random | None) -> float:
    """How often a word is not told in a batch of 4,000."""
    tokens = known.batch([Tagged((word,) * 4000, ("X",) * 4000)], draw)["tokens"]
    assert (tokens[0, :, -1] == tokens[0, 0, -1]).all(), "its letters are"
    return (tokens[0, :, 0] == UNKNOWN).float().mean().item()


def test_the_rarer_the_word_the_sooner_it_is_forgotten() -> None:
    examples = [Tagged(("often",) * 9 + ("Once",), ("X",) * 10)]
    known, draw = Tag.prepare(examples, TagSettings(rare_word_dropout=1.0)), Random(0)
    assert share_lost(known, "often", draw) == pytest.approx(0.1, abs=0.02)
    assert share_lost(known, "Once", draw) == pytest.approx(0.5, abs=0.03)
    assert share_lost(known, "Once", None) == 0, "nothing is forgotten but while training"
    assert share_lost(Tag.prepare(examples, TagSettings(rare_word_dropout=0.0)), "Once", draw) == 0
    assert share_lost(Tag.prepare(examples, TagSettings(word_dropout=0.999)), "often", draw) > 0.96


def test_with_a_word_its_lower_case_may_be_forgotten() -> None:
    examples = [Tagged(("cat", "Cat", "CAT", "at"), ("X",) * 4)]
    known = Tag.prepare(examples, TagSettings(rare_word_dropout=1.0))
    given = Tagged(("Cat", "at", "Cut") * 500, ("X",) * 1500)
    plain = known.batch([given])["tokens"][0]
    drawn = known.batch([given], Random(0))["tokens"][0]
    word, lower = drawn[:, 0] != plain[:, 0], drawn[:, 1] != plain[:, 1]
    assert (drawn[word, 0] == UNKNOWN).all() and (drawn[lower, 1] == PAD).all()
    assert not (lower & ~word).any() and not lower.view(-1, 3)[:, 1:].any(), "with the word, and where there is one"
    assert word.view(-1, 3)[:, 0].float().mean() == pytest.approx(0.5, abs=0.07)
    assert lower[word].view(-1).sum() / word.view(-1, 3)[:, 0].sum() == pytest.approx(1 / 4, abs=0.08)
    assert torch.equal(drawn[:, 2:], plain[:, 2:]), "what it is made of is told"


def test_threads_learn_new_words_side_by_side() -> None:
    """A batch is made ahead while another is evaluated: neither may see half of what the other adds."""
    known = task()
    texts = [[f"w{a}{n}" for n in range(60)] for a in range(200)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda words: known.word_features.batch([words])["tokens"][0], texts))
    for words, rows in zip(texts, found, strict=True):
        for word, row in zip(words, rows.tolist(), strict=True):
            numbers = known.word_features.encode(word)
            assert row[: len(numbers)] == numbers and not any(row[len(numbers) :])


@pytest.mark.parametrize("model", ["transformer", "lstm+attention", "cnn", "mlp"])
def test_padding_never_matters(model: str) -> None:
    """Neither more words beside a sentence nor longer words beside its own change its logits."""
    torch.manual_seed(0)
    known = Tag.prepare(sentences(20, 0), TagSettings())
    made = known.config(Architecture(model=model, dim=16, layers=2, heads=2)).build().eval()
    short, long = Tagged(("dming", "bness"), ("VERB", "NOUN")), Tagged(("sprrrrrrrrrrrrly",) * 6, ("ADV",) * 6)
    one, two = (known.batch(examples) for examples in ([short], [short, long]))
    assert one["tokens"].shape[1:] != two["tokens"].shape[1:]
    alone, beside = (made(tokens=batch["tokens"], lengths=batch["lengths"]).logits for batch in (one, two))
    assert torch.allclose(alone[0], beside[0, :2], atol=1e-5)


def test_words_never_seen_are_read_by_their_endings(tmp_path: Path) -> None:
    """Trained, saved, opened again: other stems, the same endings."""
    for name, examples in {"train": sentences(150, 0), "new": sentences(20, 1, stems="vwxz")}.items():
        rows = ("\n".join(f"{w}\t{t}" for w, t in zip(e.words, e.tags, strict=True)) for e in examples)
        (tmp_path / f"{name}.tsv").write_text("\n\n".join(rows) + "\n", "utf8")
    small = {"dim": 16, "layers": 1, "heads": 2, "batch_tokens": 60, "learning_rate": 1e-2, "word_dim": 12}
    given = ["train", "tag", "--train", tmp_path / "train.tsv", "--out", tmp_path / "run", "--epochs", 6]
    given += [word for name, value in small.items() for word in ("--set", f"{name}={value}")]
    done = CliRunner().invoke(app, [str(word) for word in given])
    assert done.exit_code == 0, done.output
    told = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run"), "--data", str(tmp_path / "new.tsv"), "--json"])
    assert json.loads(told.stdout)["metrics"]["accuracy"] > 0.95
    said = CliRunner().invoke(app, ["predict", str(tmp_path / "run"), "zwvly Xxness", ""])
    assert said.stdout.splitlines()[0] == "zwvly/ADV Xxness/NOUN"


def test_a_run_from_before_there_were_features_still_opens(tmp_path: Path) -> None:
    """Its words, letters and tags are all that it says, and its model has no columns for more."""
    known = task(max_affix=0)
    data = {name: value for name, value in known.as_dict().items() if name != "features"}
    opened = Tag.from_dict(
        data, load_settings(TagSettings, {"column": "upos", "least": 2, "letters": 20, "word_dropout": 0.1})
    )
    assert opened.word_features.columns == 0 and opened.word_features.encode("Cats") == known.word_features.encode(
        "Cats"
    )
    made = known.config(SMALL).build()
    made.save(tmp_path)
    assert opened.tag(load(tmp_path), [["the", "dog"], []]) == known.tag(made.eval(), [["the", "dog"], []])


def test_features_add_to_a_words_vector() -> None:
    torch.manual_seed(0)
    config = WordEmbeddingConfig(10, 5, 8, places=None, features=2, word_dim=6)
    embed = config.build()
    given = torch.tensor([[[3, 4, 0, 2, 1]]])
    wanted = embed.join(
        torch.cat([embed.words.weight[3] + embed.words.weight[4], embed.encode_letters(given[..., 3:])[0, 0]])
    )
    assert torch.allclose(embed(given)[0, 0], wanted) and not embed.words.weight[0].any()
    (learned,) = torch.autograd.grad(embed(given).square().sum(), embed.words.weight)
    assert learned[3].any() and not learned[0].any(), "no feature learns nothing"


def test_tags_never_learned_are_counted() -> None:
    assert task().unknown_labels([Tagged(("a", "cat"), ("DET", "NN")), Tagged(("b",), ("NN",))]) == {"NN": 2}


def test_a_spelling_can_be_copied_and_pickled() -> None:
    known = task()
    wanted = known.batch([Tagged(("The", "dog"), ("DET", "NOUN"))])["tokens"]
    for other in (copy.deepcopy(known.word_features), pickle.loads(pickle.dumps(known.word_features))):
        assert torch.equal(other.batch([("The", "dog")])["tokens"], wanted)


def test_few_sentences_have_defaults_of_their_own(tmp_path: Path) -> None:
    """Convolutions below attention, unless settings of another model are given; a resumed run keeps what it has."""
    examples = [Tagged(("the", "cat"), ("DET", "NOUN"))] * 40
    adapted = RunConfig.from_changes("tag", {"dropout": 0.15}).adapt(examples, tmp_path)
    chosen = (adapted.architecture.model, adapted.architecture.dropout, adapted.training.batch_tokens)
    assert chosen == ("cnn+attention", 0.15, 512)
    adapted.prepare(examples).config(adapted.architecture).build()
    for given in ({"model": "transformer"}, {"heads": 2}, {"position": "Alibi()"}):
        config = RunConfig.from_changes("tag", given)
        assert config.adapt(examples, tmp_path) == config
    names = [SpannedText("Ada sleeps", (LabelledSpan(0, 3, "PER"),))] * 40
    assert RunConfig.from_changes("spans", {}).adapt(names, tmp_path).architecture.model == "cnn+attention"
    assert RunConfig.from_changes("tag", {}).adapt(examples * 2000, tmp_path).architecture.model == "transformer"
