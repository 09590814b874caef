"""Transcription: tones that spell words are written down; the decoding and the error rates are right by enumeration."""

from __future__ import annotations

import csv
import itertools
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
from regard.data.sound import Samples, Spoken
from regard.tasks.architecture import GRAPHS, HIERARCHICAL, MODELS, TEXTS, Architecture
from regard.tasks.inputs.audio_features import AudioFeatures, add_deltas
from regard.tasks.metrics.ctc import BLANK, ctc_loss, greedy, min_frames, prefix_beam_search
from regard.tasks.metrics.edit_distance import character_error_rate, edit_distance, word_error_rate
from regard.tasks.transcribe import Transcribe, TranscribeSettings

TONES = {"a": 300.0, "b": 700.0, "c": 1300.0, "d": 2300.0}
RATE = 8000


def tone(letter: str, draw: Random) -> torch.Tensor:
    """About a tenth of a second of a letter; of silence for a blank."""
    time = torch.arange(int(RATE * draw.uniform(0.08, 0.12))) / RATE
    wave = 0.3 * torch.sin(2 * math.pi * TONES.get(letter, 0.0) * time)
    return wave + 0.01 * torch.tensor([draw.gauss(0, 1) for _ in time])


def spell(text: str, draw: Random) -> torch.Tensor:
    """A recording of a text."""
    return torch.cat([tone(letter, draw) for letter in f" {text} "])


def texts(count: int, draw: Random) -> list[str]:
    """Words without the same letter twice in a row, which would be one long tone."""
    words = [a + b + c for a, b, c in itertools.product("abcd", repeat=3) if a != b != c]
    return [" ".join(draw.choice(words) for _ in range(draw.randint(1, 2))) for _ in range(count)]


def make_spoken(count: int, seed: int) -> list[Spoken]:
    draw = Random(seed)
    return [Spoken(text, sound=Samples(spell(text, draw), RATE)) for text in texts(count, draw)]


def make_framed(count: int = 4, bins: int = 5) -> list[Spoken]:
    """Frames without sense, of different lengths."""
    torch.manual_seed(0)
    said = ["ab ba", "a", "bab", "b a"]
    return [Spoken(said[n % 4], frames=torch.randn(30 + 7 * n, bins)) for n in range(count)]


def task_of(examples: list[Spoken], **settings) -> Transcribe:
    return Transcribe.prepare(examples, TranscribeSettings(**settings))


SMALL = Architecture(dim=16, layers=1, heads=2, window=8, block_size=4, dropout=0.0)


def write_list(folder: Path, count: int, seed: int) -> Path:
    """WAV files and the table that says what they say."""
    import soundfile

    folder.mkdir()
    with (folder / "list.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["audio", "transcript"])
        for n, one in enumerate(make_spoken(count, seed)):
            assert one.sound is not None
            soundfile.write(folder / f"{n}.wav", one.sound.load()[0].numpy(), RATE)
            table.writerow([f"{n}.wav", one.text])
    return folder / "list.csv"


def test_commands_from_recordings_to_text(tmp_path: Path) -> None:
    """An empty answer has a word error rate of 1; a model that hears the tones makes few errors."""
    train, dev = write_list(tmp_path / "train", 96, 0), write_list(tmp_path / "dev", 20, 1)
    run, call = tmp_path / "run", CliRunner().invoke
    checked = call(app, ["check", str(train), "--task", "transcribe", "--json"])
    assert json.loads(checked.stdout)["recordings"] == 96, checked.output
    wanted = {
        "dim": 32, "layers": 1, "dropout": 0.0, "bins": 24, "stack_frames": 4, "batch_size": 16, "warmup": 20,
        "learning_rate": 5e-3, "mask_frames": 5, "mask_bins": 2, "evaluate_every": 50,
    }  # fmt: skip
    changes = [part for name, value in wanted.items() for part in ("--set", f"{name}={value}")]
    command = ["train", "transcribe", "--train", str(train), "--dev", str(dev), "--out", str(run), *changes]
    trained = call(app, [*command, "--steps", "200", "--device", "cpu", "--json"])
    assert trained.exit_code == 0, trained.output
    assert json.loads(trained.stdout)["metrics"]["wer"] < 0.5, trained.stdout
    scored = json.loads(call(app, ["evaluate", str(run), "--data", str(dev), "--json"]).stdout)
    assert scored["metrics"] == json.loads(trained.stdout)["metrics"]
    said = call(app, ["predict", str(run), str(tmp_path / "dev" / "0.wav"), "--json"])
    right = make_spoken(20, 1)[0].text
    assert edit_distance(json.loads(said.stdout)[0]["text"], right) <= 1
    gone = call(app, ["predict", str(run), str(tmp_path / "none.wav")])
    assert gone.exit_code == 1 and "none.wav does not exist" in gone.output


def test_what_the_file_has_as_frames(tmp_path: Path) -> None:
    """NPZ of frames is read, checked, trained a little; a recording cannot be written down then."""
    examples = make_framed(12)
    frames = [one.frames for one in examples if one.frames is not None]
    offsets = [0, *itertools.accumulate(len(one) for one in frames)]
    said = numpy.array([one.text for one in examples])
    path, run, call = tmp_path / "x.npz", tmp_path / "run", CliRunner().invoke
    numpy.savez(path, mfcc=torch.cat(frames).numpy(), offsets=numpy.array(offsets), text=said)
    small = ["--set", "dim=16", "--set", "layers=1", "--set", "heads=2", "--set", "deltas=true", "--set", "beams=3"]
    trained = call(app, ["train", "transcribe", "--train", str(path), "--out", str(run), "--steps", "2", *small])
    assert trained.exit_code == 0, trained.output
    numpy.save(tmp_path / "one.npy", frames[0].numpy())
    told = call(app, ["predict", str(run), str(tmp_path / "one.npy"), "--json"])
    assert json.loads(told.stdout)[0]["file"].endswith("one.npy"), told.output
    wave = write_list(tmp_path / "waves", 1, 0).parent / "0.wav"
    wrong = call(app, ["predict", str(run), str(wave)])
    assert wrong.exit_code == 1 and "trained on frames of 5 numbers" in wrong.output


@pytest.mark.parametrize("decoder", [False, True])
@pytest.mark.parametrize("model", [model for model in MODELS if model not in (*GRAPHS, *TEXTS, HIERARCHICAL)])
def test_every_model_learns_and_writes(model: str, decoder: bool) -> None:
    """A step of each has gradients everywhere (no frame is seen by all), and what it writes is text."""
    examples = make_framed()
    task = task_of(examples, stack_frames=2, decoder=decoder)
    torch.manual_seed(0)
    made = task.config(Architecture(model=model, dim=16, layers=1, heads=2, window=8, block_size=4)).build()
    loss = task.loss(made, task.batch(examples, Random(0)))
    loss.backward()
    silent = [name for name, p in made.named_parameters() if p.grad is None and "_global." not in name]
    assert loss.isfinite() and not silent, silent
    assert all(isinstance(text, str) for text in task.transcribe(made.eval(), examples))


@pytest.mark.parametrize("decoder", [False, True])
def test_a_batch_costs_what_its_examples_cost(decoder: bool) -> None:
    """Padding of sound and of text counts nothing; labels are counted once."""
    examples = make_framed()
    task = task_of(examples, stack_frames=2, decoder=decoder)
    made = task.config(SMALL).build().eval()
    alone = [task.batch([one]) for one in examples]
    together = task.batch(examples)
    total = sum(task.loss(made, batch).item() for batch in alone)
    assert task.loss(made, together).item() == pytest.approx(total, rel=1e-4)
    assert task.count(together) == sum(len(one.text) + decoder for one in examples)


def test_a_decoder_learns_two_recordings_by_heart() -> None:
    """Encoder, decoder, start and end fit together: what was learned is written, with and without beams."""
    examples = make_framed(2)
    torch.manual_seed(0)
    for beams in (1, 3):
        task = task_of(examples, stack_frames=2, decoder=True, beams=beams, mask_frames=0, mask_bins=0)
        made = task.config(Architecture(dim=32, layers=1, heads=2, dropout=0.0)).build()
        optimizer, batch = torch.optim.AdamW(made.parameters(), lr=1e-2), task.batch(examples)
        for _ in range(60):
            optimizer.zero_grad()
            task.loss(made, batch, smoothing=0.1).backward()
            optimizer.step()
        assert task.transcribe(made.eval(), examples) == [one.text for one in examples]


def test_chinese_is_written_in_characters_and_counted_by_them() -> None:
    examples = [Spoken("你好世界", frames=torch.randn(40, 5)), Spoken("世界你好吗", frames=torch.randn(50, 5))]
    task = task_of(examples)
    tokens = task.tokenizer(["你好吗"]).tokens[0].tolist()
    assert task.text_of(tokens) == "你好吗" and BLANK not in tokens
    assert task.evaluate(task.config(SMALL).build().eval(), examples).main == "cer"


@pytest.mark.parametrize("unit", ["characters", "words", "bpe", "unigram"])
def test_units_spell_the_text_again(unit: str) -> None:
    said = ["the cat sat", "a cat sat there"]
    examples = [Spoken(text, frames=torch.randn(80, 5)) for text in said]
    task = task_of(examples, unit=unit, vocab_size=300)
    assert [task.text_of(task.tokenizer([text]).tokens[0].tolist()) for text in said] == said


def enumerate_labels(chances: torch.Tensor) -> dict[tuple[int, ...], float]:
    """The chance of every row of labels, summed over all ways to lay it out."""
    found: dict[tuple[int, ...], float] = {}
    for way in itertools.product(range(chances.shape[1]), repeat=len(chances)):
        labels = tuple(label for label, _ in itertools.groupby(way) if label != BLANK)
        found[labels] = found.get(labels, 0.0) + math.prod(float(chances[n, label]) for n, label in enumerate(way))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_prefix_beam_finds_the_likeliest_of_all(seed: int) -> None:
    logits = torch.randn(1, 5, 3, generator=torch.Generator().manual_seed(seed))
    every = enumerate_labels(logits[0].double().softmax(-1))
    assert tuple(prefix_beam_search(logits, [5], beams=200)[0]) == max(every, key=lambda labels: every[labels])


def test_prefix_beam_sees_what_greedy_does_not() -> None:
    """Blank 0.6 and a 0.4, twice: no label is 0.36 likely, one `a` is 0.64."""
    logits = torch.tensor([[[0.6, 0.4], [0.6, 0.4]]]).log()
    assert greedy(logits, [2]) == [[]]
    assert prefix_beam_search(logits, [2], beams=2) == [[1]]
    assert prefix_beam_search(logits, [1], beams=2) == [[]]


def test_ctc_loss_is_the_chance_of_all_ways() -> None:
    logits = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels, counts, lengths = torch.tensor([[1, 1], [2, 0]]), torch.tensor([2, 1]), torch.tensor([5, 3])
    chances = logits.softmax(-1)
    wanted = -math.log(enumerate_labels(chances[0])[1, 1]) - math.log(enumerate_labels(chances[1, :3])[2,])
    assert float(ctc_loss(logits, lengths, labels, counts)) == pytest.approx(wanted, rel=1e-5)
    assert float(ctc_loss(logits[:1], torch.tensor([2]), labels[:1], counts[:1])) == 0.0  # three places needed
    assert min_frames([1, 1]) == 3


def slow_distance(a: str, b: str) -> int:
    if not a or not b:
        return len(a) + len(b)
    rest = slow_distance(a[1:], b[1:]) + (a[0] != b[0])
    return min(rest, 1 + slow_distance(a[1:], b), 1 + slow_distance(a, b[1:]))


def test_edit_distance_is_the_fewest_edits() -> None:
    draw = Random(0)
    for _ in range(50):
        a, b = ("".join(draw.choices("abc", k=draw.randint(0, 5))) for _ in range(2))
        assert edit_distance(a, b) == slow_distance(a, b), (a, b)


def test_error_rates_by_hand() -> None:
    """One word of five is wrong and one too many; of 17 characters three are replaced and five added."""
    said, found = ["the cat sat", "oh no"], ["the dog sat", "oh no yes "]
    assert word_error_rate(said, found) == pytest.approx(2 / 5)
    assert character_error_rate(said, found) == pytest.approx((3 + 4) / 16)
    assert word_error_rate([""], ["a b"]) == 2.0


def test_slopes_of_a_straight_line() -> None:
    line = torch.stack([3.0 * torch.arange(20), torch.zeros(20)], 1)
    assert torch.allclose(add_deltas(line)[4:-4, 2:], torch.tensor([3.0, 0.0, 0.0, 0.0]))


def test_loudness_does_not_matter() -> None:
    sound = spell("ab", Random(0))
    hear = AudioFeatures(RATE, 20)
    loud, quiet = (hear(Spoken("", sound=Samples(sound * factor, RATE))) for factor in (1.0, 0.5))
    assert torch.allclose(loud, quiet, atol=0.1)
    assert loud.mean(0).abs().max() < 1e-4


def test_refusals_say_what_to_do() -> None:
    examples = make_framed()
    task = task_of(examples)
    with pytest.raises(rg.BadInput, match="CTC has no label"):
        task.loss(task.config(SMALL).build(), task.batch(examples), smoothing=0.1)
    with pytest.raises(rg.BadInput, match="4 of 5 examples are frames"):
        task_of([*examples, *make_spoken(1, 0)])
    with pytest.raises(rg.BadInput, match="No recording was read"):
        task_of([])
    with pytest.raises(rg.BadInput, match=r"frames have shape \[3, 4\]; wanted \[frames, 5\]"):
        task.encode_audio([Spoken("a", frames=torch.randn(3, 4))])
