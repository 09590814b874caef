"""A class for texts, images and recordings: from files to predictions."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner, Result

from regard import BadInput, Unsupported
from regard.cli import app
from regard.data import LabelledImage, LabelledSound, LabelledText, Samples
from regard.data.reading import Reading
from regard.models.checkpoint.checkpoint import load
from regard.settings import load_settings
from regard.tasks.architecture import GRAPHS, HIERARCHICAL, MODELS, TEXTS, Architecture
from regard.tasks.classify import NB_WEIGHT, Classify, ClassifySettings, detect_modality
from regard.tasks.inputs.augment import cutout, jitter_images, shift_images, spec_augment
from regard.tasks.inputs.cache import TensorCache
from regard.tasks.inputs.images import resize
from regard.tasks.metrics.classification import classification_report, sort_labels
from regard.train.run import RunConfig, RunData, train_run

SMALL = Architecture(dim=16, layers=1, heads=2, dropout=0.0, window=8, block_size=4)
READ = [name for name in MODELS if name not in (*GRAPHS, *TEXTS, HIERARCHICAL)]


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def sentences(count: int, seed: int) -> list[LabelledText]:
    """Whether `not` stands before the last word decides: a bag of words knows half of it at most."""
    draw = Random(seed)
    found = []
    for _ in range(count):
        good, turned = draw.random() < 0.5, draw.random() < 0.5
        words = [draw.choice(["the", "a", "film", "of", "it", "很"]) for _ in range(draw.randint(1, 5))]
        words += (["not"] if turned else []) + [draw.choice(["good", "fine"] if good else ["bad", "poor"])]
        found.append(LabelledText(" ".join(words), "yes" if good != turned else "no"))
    return found


def bars(count: int, seed: int, channels: int = 1) -> list[LabelledImage]:
    """A lying or a standing bar somewhere in noise: every pixel is as bright in one class as in the other."""
    draw, found = Random(seed), []
    noise = torch.Generator().manual_seed(seed)
    for _ in range(count):
        image = torch.randint(0, 80, (channels, 8, 8), generator=noise, dtype=torch.uint8)
        lying, row, column = draw.random() < 0.5, draw.randint(0, 5), draw.randint(0, 5)
        image[:, row : row + (2 if lying else 6), column : column + (6 if lying else 2)] = 230
        found.append(LabelledImage(image, "lying" if lying else "standing"))
    return found


def tones(count: int, seed: int) -> list[LabelledSound]:
    """Rising and falling tones of different lengths: the spectrum as a whole is the same."""
    draw, found = Random(seed), []
    noise = torch.Generator().manual_seed(seed)
    for _ in range(count):
        length, rising = draw.randint(1200, 2400), draw.random() < 0.5
        hertz = torch.linspace(300, 1500, length)
        phase = 2 * math.pi * (hertz if rising else hertz.flip(0)).cumsum(0) / 8000
        samples = 0.5 * phase.sin() + 0.01 * torch.randn(length, generator=noise)
        found.append(LabelledSound(Samples(samples, 8000), "up" if rising else "down"))
    return found


MADE = {"text": sentences, "image": bars, "sound": tones}


def train_model(task: Classify, examples: list[Any], a: Architecture, steps: int, rate: float = 3e-3) -> Any:
    """A model after so many steps on batches of 50, each drawn anew."""
    torch.manual_seed(0)
    model = task.config(a).build()
    task.initialize(model)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], rate)
    for step in range(steps):
        batch = task.batch(Random(step).sample(examples, 50), Random(step))
        loss = task.loss(model, batch) / task.count(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@pytest.mark.parametrize("kind", MADE)
def test_attention_learns_what_a_glance_does_not_tell(kind: str) -> None:
    examples, dev = MADE[kind](300, 0), MADE[kind](100, 1)
    own = {"text": ClassifySettings(word_dropout=0.0), "image": ClassifySettings(patch_size=2)}
    task = Classify.prepare(examples, own.get(kind, ClassifySettings()))
    scores = task.evaluate(train_model(task, examples, SMALL, 150), dev)
    assert scores.metrics["accuracy"] > 0.9
    assert scores.hypotheses[0] in task.labels


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("model", READ)
def test_every_model_takes_a_step(kind: str, model: str) -> None:
    examples = MADE[kind](50, 0)
    task = Classify.prepare(
        examples, ClassifySettings(vocab_size=50, nb_linear=0) if kind == "text" else ClassifySettings()
    )
    made = task.config(replace(SMALL, model=model)).build()
    task.loss(made, task.batch(examples, Random(0))).backward()
    unmoved = [name for name, p in made.named_parameters() if p.grad is None]
    assert not [name for name in unmoved if "global" not in name]  # Longformer's second query is asked of global tokens


@pytest.mark.parametrize("model", [*GRAPHS, *TEXTS])
def test_models_of_other_tasks_are_refused(model: str) -> None:
    task = Classify.prepare(sentences(20, 0), ClassifySettings())
    with pytest.raises(Unsupported, match="Take transformer"):
        task.config(replace(SMALL, model=model))


@pytest.mark.parametrize("model", ["cnn", "cnn+attention"])
def test_convolutions_over_images_learn(model: str) -> None:
    examples = bars(300, 0, channels=3)
    task = Classify.prepare(examples, ClassifySettings(patch_size=2, flip=True))
    found = train_model(task, examples, replace(SMALL, model=model), 60)
    assert task.evaluate(found, bars(100, 1, channels=3)).metrics["accuracy"] > 0.9


@pytest.mark.parametrize("pool", ["first", "mean", "last", "attention"])
def test_padding_never_matters(pool: str) -> None:
    examples = sentences(20, 0)
    task = Classify.prepare(examples, ClassifySettings(pool=pool))  # type: ignore[arg-type]
    torch.manual_seed(0)
    model = task.config(SMALL).build().eval()
    alone = torch.cat([task.probabilities(model, [example]) for example in examples])
    torch.testing.assert_close(task.probabilities(model, examples), alone)


def test_saved_and_loaded_says_the_same(tmp_path: Path) -> None:
    for kind, make in MADE.items():
        examples = make(20, 0)
        task = Classify.prepare(examples, ClassifySettings(pool="attention"))
        model = task.config(replace(SMALL, model="cnn+attention")).build().eval()
        model.tokenizer = task.tokenizer
        model.save(tmp_path / kind)
        again = load(tmp_path / kind)
        stored = json.loads(json.dumps([task.as_dict(), asdict(task.settings)]))
        same = Classify.from_dict(stored[0], load_settings(ClassifySettings, stored[1]), again.tokenizer)
        torch.testing.assert_close(same.probabilities(again, examples), task.probabilities(model, examples))


@pytest.mark.parametrize(("known_by", "features"), [({"max_affix": 2}, 6), ({"char_ngrams": 3}, 21)])
def test_words_never_seen_are_read_by_what_they_are_made_of(known_by: Any, features: int, tmp_path: Path) -> None:
    """`un-` turns a word about, and no word of the new texts was seen; padding and saving change nothing."""

    def make_words(seed: int, stems: str) -> list[LabelledText]:
        draw, found = Random(seed), []
        for _ in range(200):
            words = ["".join(draw.choices(stems, k=3)) + "ed" for _ in range(draw.randint(1, 4))]
            bad = draw.random() < 0.5
            found.append(LabelledText(" ".join([*words, "un" + words[0]] if bad else words), "bad" if bad else "good"))
        return found

    examples, new = make_words(0, "bdfgklm"), make_words(1, "prstvwz")
    task = Classify.prepare(examples, ClassifySettings(**known_by, word_dropout=0.0))
    model = train_model(task, examples, SMALL, 60, rate=1e-2)
    assert task.evaluate(model, new).metrics["accuracy"] > 0.9
    alone = torch.cat([task.probabilities(model, [example]) for example in new[:9]])
    torch.testing.assert_close(task.probabilities(model, new[:9]), alone)
    assert task.predict(model, [""])[0].label in task.labels
    model.tokenizer = task.tokenizer
    model.save(tmp_path)
    stored = json.loads(json.dumps([task.as_dict(), asdict(task.settings)]))
    again = load(tmp_path)
    same = Classify.from_dict(stored[0], load_settings(ClassifySettings, stored[1]), again.tokenizer)
    torch.testing.assert_close(same.probabilities(again, new), task.probabilities(model, new))
    hidden = Classify.prepare(examples, replace(task.settings, word_dropout=0.999)).batch(examples[:50], Random(0))
    assert (hidden["tokens"][..., 1:] != 0).any(-1).float().mean() < 0.01, "what is hidden shows no letter"
    with pytest.raises(BadInput, match=f"1 \\+ {features} features"):
        again(**again.tokenizer(["a text"]).inputs)
    with pytest.raises(BadInput, match="max_affix=0"):
        Classify.prepare(examples, ClassifySettings(**known_by, unit="bpe"))


def test_members_learn_by_themselves_from_every_example() -> None:
    """While training each member has its own copy of every example, changed for itself; otherwise there is one."""
    examples, dev = sentences(300, 0), sentences(100, 1)
    task = Classify.prepare(examples, ClassifySettings(ensemble=3, word_dropout=0.0, nb_linear=0))
    changing = Classify.prepare(examples, replace(task.settings, word_dropout=0.5))
    batch = changing.batch(examples[:5], Random(0))
    assert batch["labels"].tolist() == [task.target.number[one.label] for one in examples[:5] for _ in range(3)]
    copies = batch["tokens"].view(5, 3, -1)
    assert (copies[:, 0] != copies[:, 1]).any()
    assert len(changing.batch(examples[:5])["tokens"]) == 5
    model = train_model(task, examples, SMALL, 150)
    alone = [task.probabilities(one, dev) for one in model.members]
    torch.testing.assert_close(task.probabilities(model, dev), torch.stack(alone).mean(0))
    assert task.evaluate(model, dev).metrics["accuracy"] > 0.9


@pytest.mark.parametrize("known_by", [{}, {"max_affix": 2}, {"char_ngrams": 4}, {"unit": "bpe"}])
def test_a_line_beside_learns_what_pairs_say(known_by: dict[str, Any]) -> None:
    """No word tells the class here, "not good" does; the line hears what counting says, and is heard."""
    examples, dev = sentences(300, 0), sentences(100, 1)
    task = Classify.prepare(examples, ClassifySettings(nb_linear=5000, word_dropout=0.0, vocab_size=300, **known_by))
    assert len(task.batch(examples[:5], Random(0))["labels"]) == 10
    model = train_model(task, examples, SMALL, 150)
    torch.testing.assert_close(model.beside.ratios, task.ratios)
    line, encoder = task.probabilities(model.beside, dev), task.probabilities(model.members[0], dev)
    torch.testing.assert_close(task.probabilities(model, dev), NB_WEIGHT * line + (1 - NB_WEIGHT) * encoder)
    gold = torch.tensor([task.target.number[one.label] for one in dev])
    assert float((line.argmax(-1) == gold).float().mean()) > 0.9
    again = Classify.from_dict(task.as_dict(), task.settings, task.tokenizer)
    assert again.config(SMALL) == task.config(SMALL)
    torch.testing.assert_close(again.probabilities(model, dev), task.probabilities(model, dev))


def test_a_line_is_for_texts() -> None:
    with pytest.raises(BadInput, match="nb_linear is a setting for text"):
        Classify.prepare(bars(20, 0), ClassifySettings(nb_linear=100))


def test_word_vectors_are_what_words_begin_with(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("good 1 2 3\nbad 4 5 6\nsplendid 7 8 9\n")
    settings = ClassifySettings(vectors=str(tmp_path / "v.txt"), freeze_vectors=True, nb_linear=0)
    examples = sentences(100, 0)
    task = Classify.prepare(examples, settings)
    model = train_model(task, examples, SMALL, 3)
    number = task.tokenizer.backend.token_to_id("splendid")  # never occurred
    assert model.embed.tokens.weight[number].tolist() == [7, 8, 9]
    assert task.config(SMALL).embed.inner == 3
    np.savez(tmp_path / "v.npz", words=np.array(["good"]), vectors=np.ones((1, 3), np.float16))
    assert Classify.prepare(
        examples, ClassifySettings(vectors=str(tmp_path / "v.npz"), nb_linear=0)
    ).inputs.as_dict() == {"vector_dim": 3}
    with pytest.raises(BadInput, match="unit 'words'"):
        Classify.prepare(examples, ClassifySettings(vectors=str(tmp_path / "v.txt"), unit="bpe"))


def test_r_drop_is_two_losses_and_their_divergence() -> None:
    """By hand from the two answers; without dropout they are one, and so is the loss."""
    examples = sentences(20, 0)
    plain, task = (Classify.prepare(examples, ClassifySettings(r_drop=weight)) for weight in (0.0, 3.0))
    batch = plain.batch(examples)
    torch.manual_seed(0)
    model = plain.config(replace(SMALL, dropout=0.5)).build()
    torch.manual_seed(1)
    two = model(tokens=batch["tokens"].repeat(2, 1), lengths=batch["lengths"].repeat(2)).logits
    p, q = two.double().log_softmax(-1).chunk(2)
    losses = -(p + q).gather(1, batch["labels"][:, None]).sum() / 2
    divergence = (p.exp() * (p - q)).sum() + (q.exp() * (q - p)).sum()
    torch.manual_seed(1)
    torch.testing.assert_close(task.loss(model, batch).double(), losses + 3 / 4 * divergence, rtol=1e-5, atol=1e-5)
    model.eval()
    torch.testing.assert_close(task.loss(model, batch), plain.loss(model, batch))


def test_hidden_words_are_drawn_and_specials_stay() -> None:
    examples = sentences(50, 0)
    task = Classify.prepare(examples, ClassifySettings(word_dropout=0.5))
    plain, drawn, again = (task.batch(examples, draw) for draw in (None, Random(1), Random(1)))
    assert torch.equal(drawn["tokens"], again["tokens"])
    changed = plain["tokens"] != drawn["tokens"]
    assert 0.3 < float(changed.sum() / (plain["lengths"] - 2).sum()) < 0.7
    assert torch.equal(plain["tokens"][:, 0], drawn["tokens"][:, 0])
    assert set(drawn["tokens"][changed].tolist()) == {task.tokenizer.unknown}


def test_scores_are_the_definitions() -> None:
    gold, said = list("aabbc"), list("abbbb")
    each = classification_report(gold, said)
    assert each["b"] == {"precision": 0.5, "recall": 1.0, "F1": pytest.approx(2 / 3), "count": 2}
    assert each["c"]["F1"] == 0.0


def test_a_label_never_learned_is_reported_and_wrong() -> None:
    examples = sentences(50, 0)
    task = Classify.prepare(examples, ClassifySettings())
    model = task.config(SMALL).build().eval()
    scores = task.evaluate(model, [LabelledText("it", "maybe")] * 3)
    assert scores.metrics["accuracy"] == 0.0
    assert scores.details["never learned"] == {"maybe": 3}


def test_images_are_normalised_by_the_training_images() -> None:
    examples = bars(200, 0, channels=3)
    task = Classify.prepare(examples, ClassifySettings())
    pixels = task.batch(examples)["images"]
    torch.testing.assert_close(pixels.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(pixels.std((0, 2, 3)), torch.ones(3), atol=1e-2, rtol=0)


def test_sizes_are_brought_together() -> None:
    image = torch.randint(0, 255, (3, 9, 14), dtype=torch.uint8)
    flat = torch.full((3, 5, 5), 70, dtype=torch.uint8)
    examples = [LabelledImage(image, "a"), LabelledImage(flat, "b")] * 3
    assert Classify.prepare(examples, ClassifySettings(image_size=12)).batch(examples)["images"].shape == (6, 3, 12, 12)
    assert Classify.prepare(examples, ClassifySettings()).batch(examples)["images"].shape == (6, 3, 64, 64)
    assert resize(flat, (11, 7)).unique().tolist() == [70]


def grid(batch: int = 4, height: int = 5, width: int = 7) -> Tensor:
    return torch.arange(batch * 2 * height * width).float().view(batch, 2, height, width)


def test_moved_images_are_cuts_of_themselves() -> None:
    images = grid(batch=16)
    assert torch.equal(shift_images(images, Random(0)), images)
    shifted = shift_images(images, Random(0), shift=2)
    assert torch.equal(shifted, shift_images(images, Random(0), shift=2))
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2), mode="replicate")
    places = set()
    for n in range(16):
        fits = [
            (y, x) for y in range(5) for x in range(5) if torch.equal(padded[n, :, y : y + 5, x : x + 7], shifted[n])
        ]
        assert fits
        places.update(fits)
    assert len(places) > 5
    flipped = shift_images(images, Random(0), flip=True)
    kinds = [torch.equal(flipped[n], images[n]) for n in range(16)]
    assert all(same or torch.equal(flipped[n], images[n].flip(2)) for n, same in enumerate(kinds))
    assert 0 < sum(kinds) < 16


def test_other_changes_are_what_they_say() -> None:
    images = torch.ones(32, 3, 8, 8)
    hidden = cutout(images, Random(0), 4) == 0
    assert torch.equal(hidden[:, 0], hidden[:, 2])
    assert hidden[:, 0].flatten(1).sum(1).max() == 16 and hidden.any((1, 2, 3)).all()
    tint = jitter_images(images, Random(0), 0.2)
    assert 0.6 <= tint.min() < 0.9 and 1.1 < tint.max() <= 1.4
    assert torch.equal(tint.amax((2, 3)), tint.amin((2, 3)))
    frames = torch.ones(40, 12)
    changed = spec_augment(frames, Random(3), (10, 3))
    assert bool((frames == 1).all())
    rows, columns = (changed == 0).all(1).sum(), (changed == 0).all(0).sum()
    assert 0 < rows <= 20 and 0 < columns <= 6


def test_mixed_images_have_both_labels() -> None:
    examples = bars(40, 0)
    task = Classify.prepare(examples, ClassifySettings(mixup=0.8))
    plain, both = task.batch(examples), task.batch(examples, Random(0))
    share = float(both["share"])
    assert 0 < share < 1 and "share" not in plain
    other = (both["images"] - share * plain["images"]) / (1 - share)
    for image, label in zip(other, both["other"], strict=True):
        same = [n for n in range(40) if torch.allclose(plain["images"][n], image, atol=1e-3)]
        assert same and plain["labels"][same[0]] == label
    torch.manual_seed(0)
    model = task.config(SMALL).build().eval()
    mean = [task.loss(model, {"images": both["images"], "labels": both[name]}) for name in ("labels", "other")]
    torch.testing.assert_close(task.loss(model, both), share * mean[0] + (1 - share) * mean[1])


def test_kept_forgets_nothing_that_fits() -> None:
    made: list[int] = []
    kept = TensorCache(lambda size: made.append(size) or torch.zeros(size), limit=8)  # type: ignore[func-returns-value]
    assert [len(kept(size)) for size in (1, 5, 1, 5)] == [1, 5, 1, 5]
    assert made == [1, 5, 5]


def write_texts(path: Path, examples: list[LabelledText]) -> Path:
    path.write_text("label\ttext\n" + "".join(f"{one.label}\t{one.text}\n" for one in examples), "utf8")
    return path


def test_commands_with_texts(tmp_path: Path) -> None:
    train, dev = (write_texts(tmp_path / f"{n}.tsv", sentences(300 - 200 * n, n)) for n in (0, 1))
    facts = json.loads(call("check", train, "--task", "classify", "--json").stdout)
    assert facts["kind"] == "text" and set(facts["classes"]) == {"yes", "no"}
    small = [
        "dim=16",
        "layers=1",
        "heads=2",
        "batch_size=50",
        "learning_rate=0.01",
        "warmup=5",
        "schedule=constant",
        "dropout=0",
    ]
    changed = [word for setting in (*small, "word_dropout=0") for word in ("--set", setting)]
    out = ("--out", tmp_path / "run", "--epochs", "25", "--device", "cpu")
    done = call("train", "classify", "--train", train, "--dev", dev, *out, *changed)
    assert done.exit_code == 0, done.stderr
    scores = json.loads(call("evaluate", tmp_path / "run", "--data", dev, "--json").stdout)
    assert scores["metrics"]["accuracy"] > 0.8
    said = json.loads(call("predict", tmp_path / "run", "the film of it good", "a film not good", "--json").stdout)
    assert [one["label"] for one in said] == ["yes", "no"]
    assert all(0.5 <= one["probability"] <= 1 for one in said)


def test_commands_with_images_and_recordings(tmp_path: Path) -> None:
    from PIL import Image

    for n, example in enumerate(bars(40, 0, channels=3)):
        folder = tmp_path / "images" / example.label
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(example.image.permute(1, 2, 0).numpy()).save(folder / f"{n}.png")  # type: ignore[union-attr]
    sounds = tones(40, 0)
    samples = [(one.sound.values * 30000).to(torch.int16) for one in sounds]  # type: ignore[union-attr]
    offsets = np.cumsum([0] + [len(one) for one in samples])
    labels, tested = np.array([one.label for one in sounds]), np.arange(40) % 4 == 0
    np.savez(
        tmp_path / "s.npz", audio=torch.cat(samples).numpy(), offsets=offsets, rate=8000, label=labels, is_test=tested
    )
    for data, kind in ((tmp_path / "images", "image"), (tmp_path / "s.npz", "sound")):
        assert detect_modality(data) == kind
        out = tmp_path / f"run-{kind}"
        small = ("--steps", "3", "--device", "cpu", "--set", "dim=8", "--set", "heads=2", "--set", "batch_size=16")
        done = call("train", "classify", "--train", data, "--out", out, *small)
        assert done.exit_code == 0, done.stderr
        scores = json.loads(call("evaluate", out, "--data", data, "--json").stdout)
        counted = sum(one["count"] for one in scores["per class"].values())
        assert counted == (10 if kind == "sound" else 40)  # the recordings of the test split
    for option in ("--split", "--part"):  # the name of the option, and its former name
        scored = call("evaluate", tmp_path / "run-sound", "--data", tmp_path / "s.npz", option, "train", "--json")
        assert sum(one["count"] for one in json.loads(scored.stdout)["per class"].values()) == 30
    assert "--split" in (text := call("evaluate", "--help").stdout) and "--part" not in text
    path = next((tmp_path / "images").rglob("*.png"))
    said = json.loads(call("predict", tmp_path / "run-image", path, "--json").stdout)
    assert said[0]["label"] in ("lying", "standing")
    assert "give the path of an" in call("predict", tmp_path / "run-sound", "hello").stderr


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        ("label\ttext\n1\tI like it\n", "text"),
        ("path,label\na/b.PNG,cat\n", "image"),
        ('{"audio": "x.wav", "label": "up"}\n', "sound"),
        ("label,review\n0,很好吃。\n", "text"),
    ],
)
def test_the_kind_is_found_from_the_files(lines: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "some.csv"
    path.write_text(lines, "utf8")
    assert detect_modality(path) == kind


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (sentences, ClassifySettings(flip=True), "flip is a setting for image, and these files hold text"),
        (bars, ClassifySettings(bins=13), "bins is a setting for sound, and these files hold image"),
    ],
)
def test_settings_of_another_kind_are_refused(make: Any, settings: ClassifySettings, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Classify.prepare(make(10, 0), settings)


def test_what_cannot_be_learned_is_refused() -> None:
    with pytest.raises(BadInput, match="1 class in 2 examples"):
        Classify.prepare([LabelledText("a", "x")] * 2, ClassifySettings())
    task = Classify.prepare(bars(10, 0), ClassifySettings(patch_size=3, image_size=9))
    with pytest.raises(BadInput, match="patch must be 2, 4, 8"):
        task.config(replace(SMALL, model="cnn"))


def test_a_text_may_end_in_the_name_of_a_file(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text("text,label\nsee you,ham\nI sent b.png,spam\nall well,ham\n")
    assert detect_modality(table) == "text"
    table.write_text("path,label\na.png,cat\n\nb.png,dog\n")
    assert detect_modality(table) == "image"


def test_labels_of_one_number_have_one_order() -> None:
    assert sort_labels({"1", "01", "2"}) == sort_labels({"2", "01", "1"}) == ["01", "1", "2"]


def test_recordings_are_brought_to_a_sample_rate_of_the_command_line(tmp_path: Path) -> None:
    sound = np.random.default_rng(0).normal(size=24 * 1600).astype("float32")
    np.savez(tmp_path / "a.npz", audio=sound, offsets=np.arange(25) * 1600, rate=8000, label=["a", "b"] * 12)
    given = "classify", "--train", tmp_path / "a.npz", "--out", tmp_path / "out", "--set", "sample_rate=4000"
    small = "--steps", 2, "--set", "dim=16", "--set", "layers=1", "--set", "heads=2", "--device", "cpu"
    assert CliRunner().invoke(app, ["train", *map(str, (*given, *small))]).exit_code == 0
    assert json.loads((tmp_path / "out" / "task.json").read_text("utf8"))["inputs"]["rate"] == 4000


def test_held_out_examples_have_every_class() -> None:
    examples = [LabelledText(f"text {n}", "rare" if n % 10 == 0 else "common") for n in range(100)]
    examples.append(LabelledText("single", "single"))
    rest, held = Classify.split(Reading(tuple(examples)), 0.1, seed=3)
    assert Counter(example.label for example in held.examples) == {"common": 9, "rare": 1}
    assert len(rest) == 91 and any(example.label == "single" for example in rest.examples)


def test_rare_classes_and_cut_texts_are_named() -> None:
    examples = [LabelledText("a few words " * 5, "a")] * 20 + [LabelledText("short", "b")] * 2
    task = Classify.prepare(examples, ClassifySettings(max_length=8))
    sentences = task.choices(examples)
    assert sentences[0].startswith("20 of 22 texts are longer than max_length=8 tokens (the longest has 17)")
    assert sentences[1] == "Classes with fewer than 5 examples are hardly learned: 'b' (2)."


def test_a_class_that_was_never_learned_costs() -> None:
    examples = [LabelledText("good", "a"), LabelledText("bad", "b")] * 5
    task = Classify.prepare(examples, ClassifySettings())
    model = task.config(Architecture(dim=16, layers=1, heads=2)).build().eval()
    scores = task.evaluate(model, [LabelledText("good", "never seen")])
    assert scores.metrics["loss"] == pytest.approx(-math.log(1e-12), rel=1e-4) and scores.metrics["accuracy"] == 0


def test_balanced_weights_make_classes_count_alike() -> None:
    examples = [LabelledText("good", "a")] * 9 + [LabelledText("bad", "b")]
    task = Classify.prepare(examples, ClassifySettings(class_weights="balanced", word_dropout=0.0))
    model = task.config(Architecture(dim=16, layers=1, heads=2, dropout=0.0)).build().train()
    batch = task.batch(examples)
    plain = Classify.prepare(examples, ClassifySettings(word_dropout=0.0))
    losses = [plain.loss(model, plain.batch(examples[n : n + 1])) for n in (0, 9)]
    torch.testing.assert_close(task.loss(model, batch), 9 * losses[0] * (10 / 18) + losses[1] * 5)
    torch.testing.assert_close(task.loss(model.eval(), batch), plain.loss(model, batch))


@pytest.mark.parametrize("kind", MADE)
def test_numbers_of_every_modality(kind: str) -> None:
    """A number of a text, an image or a recording: standardized for training, predicted in its unit."""
    examples = [replace(example, label=f"{100 + n / 7:.2f}") for n, example in enumerate(MADE[kind](40, 0))]
    task = Classify.prepare(examples, ClassifySettings())
    assert task.target.kind == "number" and task.labels is None and task.settings.target == "number"
    assert "regression" in task.choices(examples)[0]
    model = task.config(SMALL).build()
    task.loss(model, task.batch(examples, Random(0))).backward()
    metrics = task.evaluate(model.eval(), examples).metrics
    assert metrics["RMSE"] < 30 and {"MAE", "R2", "Spearman"} <= metrics.keys()  # near the mean, in the labels' unit
    two = Classify.prepare(examples, ClassifySettings(ensemble=2))
    pair = two.config(SMALL).build().eval()
    alone = torch.stack([two.logits(member, examples) for member in pair.members])
    torch.testing.assert_close(two.logits(pair, examples), alone.mean(0))
    again = Classify.from_dict(json.loads(json.dumps(task.as_dict())), task.settings, task.tokenizer)
    torch.testing.assert_close(again.logits(model, examples), task.logits(model, examples))
    with pytest.raises(BadInput, match="r_drop compares probabilities of classes"):
        Classify.prepare(examples, ClassifySettings(r_drop=1.0))


@pytest.mark.parametrize(
    "given, model, patch",
    [
        ({}, "cnn+attention", 2),
        ({"epochs": 2}, "cnn+attention", 2),
        ({"image_size": 70}, "cnn+attention", 8),
        ({"patch_size": 2}, "transformer", 2),
        ({"pool": "first"}, "transformer", 4),
        ({"heads": 2}, "transformer", 4),
    ],
    ids=str,
)
def test_few_images_have_defaults_of_their_own(given: dict, model: str, patch: int, tmp_path: Path) -> None:
    examples = bars(40, 0)
    config = RunConfig.from_changes("classify", {"device": "cpu", **given}).adapt(examples, tmp_path)
    task = config.prepare(examples)
    assert (config.architecture.model, task.settings.patch_size) == (model, patch)  # type: ignore[attr-defined]
    assert config.training.epochs == given.get("epochs", 30 if model != "transformer" else 20)
    batch = task.batch(examples[:3])
    assert task.config(config.architecture).build()(images=batch["images"]).logits.shape == (3, 2)


def test_few_images_are_learned_with_the_defaults(tmp_path: Path) -> None:
    config = RunConfig.from_changes("classify", {"device": "cpu", "epochs": 5, "dim": 16})
    examples, held = bars(120, 0), bars(60, 1)
    config = config.adapt(examples, tmp_path)
    task = config.prepare(examples)
    train_run(task, config.architecture, config.training, RunData(examples, held), tmp_path, config.files)
    assert json.loads((tmp_path / "scores.json").read_text())["metrics"]["accuracy"] > 0.9
