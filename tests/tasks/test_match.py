"""Matching: coloured squares find the words about them and the other way round; recall is counted by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random

import numpy
import pytest
import torch
from typer.testing import CliRunner

import regard as rg
from regard.cli import app
from regard.data.images import Captioned
from regard.data.reading import Reading
from regard.models.dual_encoder import contrastive_loss
from regard.tasks.architecture import GRAPHS, HIERARCHICAL, MODELS, TEXTS, Architecture
from regard.tasks.match import Match, MatchSettings, contrastive_loss_sum, ranks, recall_at
from regard.tasks.splits import split_data

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 220), "white": (240, 240, 240)}
PLACES = {"upper left": (1, 1), "upper right": (1, 9), "lower left": (9, 1), "lower right": (9, 9)}
WAYS = ("a {} square in the {} corner", "{} , {}")


def picture(colour: str, place: str, draw: Random) -> torch.Tensor:
    """uint8 [3, 16, 16] with a square somewhere near its corner."""
    pixels = torch.tensor([[[draw.randint(60, 110)]] for _ in range(3)]).expand(3, 16, 16).clone()
    top, left = (side + draw.randint(0, 1) for side in PLACES[place])
    pixels[:, top : top + 5, left : left + 5] = torch.tensor(COLOURS[colour])[:, None, None]
    return pixels.to(torch.uint8)


def make_captioned(seed: int, count: int = 1) -> list[Captioned]:
    """`count` images of each of sixteen kinds, two captions an image."""
    draw = Random(seed)
    kinds = [(colour, place) for colour in COLOURS for place in PLACES for _ in range(count)]
    images = [(picture(colour, place, draw), colour, place) for colour, place in kinds]
    return [
        Captioned(image, way.format(colour, place), f"{seed}/{n}")
        for n, (image, colour, place) in enumerate(images)
        for way in WAYS
    ]


def write(folder: Path, examples: list[Captioned]) -> Path:
    """PNG files, and a table with two lines for each."""
    from PIL import Image

    folder.mkdir()
    lines = ["image\tcaption"]
    for one in examples:
        name = f"{one.name.split('/')[1]}.png"
        assert isinstance(one.image, torch.Tensor)
        Image.fromarray(one.image.permute(1, 2, 0).numpy()).save(folder / name)
        lines.append(f"{name}\t{one.text}")
    (folder / "list.tsv").write_text("\n".join(lines) + "\n", "utf8")
    return folder / "list.tsv"


SETTINGS = {"patch_size": 4, "projection_dim": 16, "vocab_size": 80, "shift": 0, "word_dropout": 0.0, "jitter": 0.0}


def test_commands_from_images_and_captions_to_neighbours(tmp_path: Path) -> None:
    """Of sixteen kinds the right one is nearest; by chance one in sixteen would be."""
    train, dev = write(tmp_path / "train", make_captioned(0, 8)), write(tmp_path / "dev", make_captioned(1))
    run, call = tmp_path / "run", CliRunner().invoke
    checked = call(
        app, ["check", str(train), "--task", "match", "--set", "patch_size=4", "--set", "vocab_size=80", "--json"]
    )
    facts = json.loads(checked.stdout)
    assert (facts["pairs"], facts["images"]) == (256, 128)
    wanted = {**SETTINGS, "dim": 32, "layers": 1, "learning_rate": 3e-3, "warmup": 10, "batch_size": 32}
    wanted |= {"evaluate_every": 80}
    changes = [part for name, value in wanted.items() for part in ("--set", f"{name}={value}")]
    command = ["train", "match", "--train", str(train), "--dev", str(dev), "--out", str(run), "--device", "cpu"]
    trained = call(app, [*command, "--model", "cnn+attention", "--steps", "80", *changes, "--json"])
    assert trained.exit_code == 0, trained.output
    scores = json.loads(trained.stdout)["metrics"]
    assert scores["text@1"] > 0.6 and scores["image@1"] > 0.6, scores
    assert json.loads(call(app, ["evaluate", str(run), "--data", str(dev), "--json"]).stdout)["metrics"] == scores
    images = [str(tmp_path / "dev" / f"{n}.png") for n in (0, 15)]  # red upper left, white lower right
    said = ["a white square in the lower right corner", "a red square in the upper left corner"]
    told = json.loads(call(app, ["predict", str(run), *images, *said, "--json"]).stdout)
    assert [one["texts"][0]["what"] for one in told[:2]] == said[::-1]
    assert [one["images"][0]["what"] for one in told[2:]] == images[::-1]
    alone = call(app, ["predict", str(run), *said])
    assert alone.exit_code == 1 and "0 images and 2 texts" in alone.output


def task_of(examples: list[Captioned], **settings) -> Match:
    return Match.prepare(examples, MatchSettings(**{**SETTINGS, **settings}))


@pytest.mark.parametrize("model", [model for model in MODELS if model not in (*GRAPHS, *TEXTS, HIERARCHICAL)])
def test_every_model_learns(model: str) -> None:
    """A step lowers the loss of its own batch, and a saved task reads as before."""
    examples = make_captioned(0)
    task = task_of(examples)
    torch.manual_seed(0)
    a = Architecture(model=model, dim=16, layers=1, heads=2, window=8, block_size=4, dropout=0.0)
    made = task.config(a).build()
    batch = task.batch(examples)
    optimizer = torch.optim.AdamW(made.parameters(), lr=3e-3)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        losses.append(loss := task.loss(made, batch))
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.95 * losses[0]
    again = Match.from_dict(json.loads(json.dumps(task.as_dict())), task.settings, task.tokenizer)
    assert all(torch.equal(x, again.batch(examples)[name]) for name, x in batch.items())


def test_captions_of_an_image_are_all_right() -> None:
    """By hand: two images, the first with two captions; with nothing known, the loss is ln 3 either way."""
    right = torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 1]]).bool()
    assert contrastive_loss_sum(torch.zeros(3, 3), right).item() == pytest.approx(3 * math.log(3))
    sure = 50.0 * right
    assert contrastive_loss_sum(sure, right).item() == pytest.approx((2 * math.log(2) * 2) / 2, abs=1e-4)
    logits = torch.randn(5, 5)
    assert torch.allclose(contrastive_loss_sum(logits, torch.eye(5).bool()), 5 * contrastive_loss(logits, True))


def test_a_batch_knows_which_captions_share_an_image() -> None:
    examples = make_captioned(0)
    batch = task_of(examples).batch([examples[0], examples[2], examples[1]])
    assert batch["alike"].tolist() == [0, 1, 0]


def test_recall_by_hand() -> None:
    """Image 0 has texts 0 and 1, image 1 has text 2; equally near ones do not help."""
    near = torch.tensor([[0.1, 0.7, 0.9], [0.5, 0.2, 0.4]])
    right = torch.tensor([[1, 1, 0], [0, 0, 1]]).bool()
    assert ranks(near, right).tolist() == [2, 2]
    assert ranks(near.t(), right.t()).tolist() == [2, 1, 2]
    assert ranks(torch.zeros(3, 3), torch.eye(3).bool()).tolist() == [3, 3, 3]
    assert recall_at(torch.tensor([1, 2, 7]), 5) == pytest.approx(2 / 3)


def test_captions_of_an_image_are_held_out_together() -> None:
    learned, chosen = split_data(Reading(tuple(make_captioned(0, 2))), None, Match, 0)
    assert chosen.examples and not {one.name for one in learned.examples} & {one.name for one in chosen.examples}


def test_images_in_an_array_with_a_table_of_captions(tmp_path: Path) -> None:
    pixels = torch.stack([one.image for one in make_captioned(0)[::2]]).numpy()  # type: ignore[arg-type]
    names = numpy.array([f"p{n}" for n in range(16)])
    numpy.savez(tmp_path / "x.npz", images=pixels, image_id=names)
    lines = ["image_id\tcaption", *(f"p{n}\t第{n}张图片" for n in range(16)), "p0\t红色的方块"]
    (tmp_path / "captions.tsv").write_text("\n".join(lines) + "\n", "utf8")
    reading = Match.read([tmp_path / "x.npz", tmp_path / "captions.tsv"], MatchSettings())
    assert len(reading.strict()) == 17 and reading.examples[-1].name == "p0"
    assert task_of(list(reading.examples)).tokenizer(["红"]).lengths.tolist() == [3]
    with pytest.raises(rg.BadInput, match="Give one of each"):
        Match.read([tmp_path / "x.npz", tmp_path / "captions.tsv", tmp_path / "captions.tsv"], MatchSettings())


def test_an_image_that_is_not_there(tmp_path: Path) -> None:
    task = task_of(make_captioned(0))
    made = task.config(Architecture(dim=16, layers=1, heads=2)).build().eval()
    with pytest.raises(rg.BadInput, match=r"none\.png does not exist"):
        task.predict(made, [str(tmp_path / "none.png"), "a red square"])
