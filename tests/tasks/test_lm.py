"""Language modelling: every token counts once, whoever predicts it; from files through the commands."""

import json
import math
import random
from collections import Counter
from pathlib import Path
from random import Random

import pytest
import torch
from torch.nn import functional
from typer.testing import CliRunner

import regard as rg
from regard.cli import app
from regard.data.text import Document, read_lines
from regard.models.baselines.ngram import NgramModel
from regard.settings import Training, update_each
from regard.tasks.architecture import GRAPHS, HIERARCHICAL, MODELS, Architecture
from regard.tasks.lm import Lm, LmSettings, TextBlocks, windows
from regard.train.checkpoints import read_tensors
from regard.train.recipes import find_recipe
from regard.train.run import RunData, train_run

SMALL = Architecture(dim=16, layers=1, heads=2, dropout=0.0)
TEXT = (Document("to be or not to be\nthat is the question\n", "a.txt"), Document("生存还是毁灭\n", "b.txt"))


def make_task(**settings) -> Lm:
    return Lm.prepare(TEXT, LmSettings(**settings))


def copies(lines: int, seed: int = 0) -> str:
    """Lines such as "fad=fad": what follows "=" is known to who looks back at what came before it."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdef", k=draw.choice((3, 4)))) for _ in range(lines)]
    return "".join(f"{word}={word}\n" for word in words)


@pytest.mark.parametrize("unit", ["characters", "words", "bpe"])
def test_texts_and_numbers(unit):
    task = make_task(unit=unit, vocab_size=300)
    numbers = task.numbers(TEXT)
    assert (numbers == task.end).sum() == 2 and numbers[-1] == task.end
    assert task.unknown_share(numbers) == 0.0
    assert len(task.numbers(TEXT[1:])) < len(numbers) and task.numbers(TEXT) is numbers
    if unit != "words":
        assert task.tokenizer.decode(list(task.encode(TEXT[0].text))) == TEXT[0].text
    else:
        assert task.tokenizer.pieces(list(task.encode("to be\nfoo  <unk>\n"))) == [
            "to",
            "be",
            "\n",
            "<unk>",
            "<unk>",
            "\n",
        ]


def test_every_token_is_predicted_once_an_epoch():
    task = make_task(context=7, memory=3)
    numbers = task.numbers(TEXT)
    offsets = set()
    for epoch in range(5):
        blocks = task.epoch_examples(TEXT, Random(epoch))
        offsets.add(blocks.offset)
        labels = task.batch(list(blocks))["labels"]
        found = labels[labels >= 0]
        assert Counter(found.tolist()) == Counter(numbers.tolist())
        assert task.sizes(blocks) == [min(7, len(numbers) - begin) for begin in range(0, len(numbers), 7)]
    assert len(offsets) > 1


def test_a_block_predicts_the_next_token_and_has_what_came_before():
    task = make_task(context=4, memory=2)
    batch = task.batch([TextBlocks(torch.arange(10), 4, 2, 3)[1]])
    assert [batch[name].tolist() for name in ("before", "tokens", "labels")] == [
        [[5, 6]],
        [[7, 8, 9, 0]],
        [[8, 9, 0, 1]],
    ]


@pytest.mark.parametrize("context, stride", [(5, 5), (5, 2), (5, 1), (50, 50), (1, 1)])
def test_windows_predict_every_place_once(context, stride):
    tokens = 13
    size = min(context, tokens)
    places = [
        place for begin, fresh in windows(tokens, context, stride) for place in range(begin + fresh, begin + size)
    ]
    assert places == list(range(tokens))


@pytest.mark.parametrize("stride", [1, 3, 6])
def test_losses_are_those_of_each_token_in_its_window(stride):
    task = make_task(context=6, stride=stride)
    model = task.config(SMALL).build().eval()
    tokens = task.numbers(TEXT)[:17]
    found = task.losses(model, tokens)
    for place in range(1, 17):
        begin = next(begin for begin, fresh in windows(16, 6, stride) if begin + fresh <= place - 1 < begin + 6)
        logits = model(tokens=tokens[None, begin:place]).logits[0, -1]
        torch.testing.assert_close(found[place - 1], functional.cross_entropy(logits, tokens[place]))


def test_scores_per_token_and_per_character():
    task = make_task(context=8)
    model = NgramModel.from_tokens(task.numbers(TEXT), task.tokenizer.size, 1)
    scores = task.evaluate(model, TEXT)
    total = scores.metrics["loss"] * scores.details["tokens"]
    characters = len(TEXT[0].text) + len(TEXT[1].text)
    assert scores.details["tokens"] == characters + 1  # and the end between the texts
    assert scores.metrics["perplexity"] == pytest.approx(math.exp(scores.metrics["loss"]))
    assert scores.metrics["bits_per_character"] == pytest.approx(total / math.log(2) / characters)
    assert not scores.higher


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_the_ngram_model_is_kneser_and_neys_formula(order):
    tokens = torch.randint(5, (60,), generator=torch.Generator().manual_seed(0))
    model = NgramModel.from_tokens(tokens, 6, order)
    wanted = [-math.log(by_formula(tokens.tolist(), tokens[:n].tolist(), order, 6)[tokens[n]]) for n in range(1, 60)]
    torch.testing.assert_close(model.losses(tokens), torch.tensor(wanted, dtype=torch.float64))


def by_formula(text: list[int], history: list[int], order: int, vocabulary: int) -> list[float]:
    """p of every word after a history, with dictionaries."""
    around = text + text[: order + 1]
    chance = [1 / vocabulary] * vocabulary
    for length in range(1, min(order, len(history) + 1) + 1):
        runs = Counter(tuple(around[n : n + length]) for n in range(len(text)))
        if length < order:
            longer = {tuple(around[n : n + length + 1]) for n in range(len(text))}
            runs = Counter(run[1:] for run in longer)
        ones, twos = (sum(count == n for count in runs.values()) for n in (1, 2))
        discount = ones / max(1, ones + 2 * twos)
        start = tuple(history[len(history) - length + 1 :])
        after = {run[-1]: count for run, count in runs.items() if run[:-1] == start}
        if total := sum(after.values()):
            kept = [max(after.get(word, 0) - discount, 0) / total for word in range(vocabulary)]
            chance = [kept[word] + discount * len(after) / total * chance[word] for word in range(vocabulary)]
    return chance


def test_ngram_chances_sum_to_one_and_agree_with_the_losses():
    tokens = torch.randint(4, (2, 30), generator=torch.Generator().manual_seed(0))
    model = NgramModel.from_tokens(tokens[0], 7, 3)
    logits = model(tokens=tokens).logits
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(2, 30))
    picked = -logits[1, :-1].gather(1, tokens[1, 1:, None]).squeeze(1)
    torch.testing.assert_close(picked.double(), model.losses(tokens[1]), rtol=1e-6, atol=1e-6)


def test_an_order_that_no_number_holds_is_refused():
    with pytest.raises(rg.BadInput, match="order is 6; with a vocabulary of 33,278 it must be 1 to 4"):
        NgramModel.from_tokens(torch.arange(9), 33278, 6)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in (*GRAPHS, "ngram", HIERARCHICAL)])
def test_every_model_learns_and_goes_on_with_a_prompt(name):
    task = make_task(context=16, memory=8 if name == "transformer-xl" else 0, max_new=40)
    torch.manual_seed(0)
    a = Architecture(model=name, dim=16, layers=2, heads=2, dropout=0.0, window=4, block_size=8)
    model = task.config(a).build()
    batch = task.batch(list(task.epoch_examples(TEXT, Random(0))))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(25):
        losses.append(task.loss(model, batch))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.8 * losses[0]
    model.eval()
    assert task.evaluate(model, TEXT).metrics["loss"] < losses[0] / task.count(batch)
    written = task.predict(model, ["to be", ""])
    assert written[0].text.startswith("to be") and len(written[0].text) > 20
    assert written == task.predict(model, ["to be", ""])


def test_what_came_before_a_block_matters_to_transformer_xl():
    task = make_task(context=8, memory=8)
    torch.manual_seed(0)
    model = task.config(Architecture(model="transformer-xl", dim=16, layers=1, heads=2, dropout=0.0)).build().eval()
    batch = task.batch([task.epoch_examples(TEXT, Random(0))[1]])
    other = {**batch, "before": batch["before"].roll(1, 1)}
    assert not torch.isclose(task.loss(model, batch), task.loss(model, other))
    whole = torch.cat([batch["before"], batch["tokens"], batch["labels"][:, -1:]], 1)[0]
    torch.testing.assert_close(task.losses(model, whole)[-8:].sum(), task.loss(model, batch))


def test_a_memory_goes_with_transformer_xl_alone():
    with pytest.raises(rg.BadInput, match="transformer-xl needs one"):
        make_task().config(Architecture(model="transformer-xl"))
    with pytest.raises(rg.BadInput, match="memory is 8 for gru"):
        make_task(memory=8).config(Architecture(model="gru"))
    with pytest.raises(rg.BadInput, match="stride is 300"):
        LmSettings(stride=300)


def test_the_end_of_a_text_is_held_out(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"line {n}\n" for n in range(100)))
    rest, held = Lm.split(read_lines(tmp_path / "a.txt"), 0.1, 0)
    assert rest.examples[0].text + held.examples[0].text == (tmp_path / "a.txt").read_text()
    assert held.examples[0].text.startswith("line 9") and len(held.examples[0].lines) in (9, 10)
    (tmp_path / "b.txt").write_text("one line")
    with pytest.raises(rg.BadInput, match="Give --dev"):
        Lm.split(read_lines(tmp_path / "b.txt"), 0.1, 0)


@pytest.mark.parametrize("name, weights", [("shakespeare-char", 10_700_000), ("shakespeare-cpu", 800_000)])
def test_recipes_name_settings_that_exist(name, weights):
    settings, architecture, _ = update_each((LmSettings(), Lm.ARCHITECTURE, Lm.TRAINING), find_recipe(name).settings)
    with torch.device("meta"):
        model = Lm(settings, make_task().tokenizer).config(architecture).build()
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(weights, rel=0.02)


def test_a_run_gone_on_with_cuts_the_same_blocks(tmp_path):
    settings = {"evaluate_every": 3, "batch_tokens": 32, "device": "cpu", "schedule": "constant", "warmup": 0}
    for name, ends in (("whole", [9]), ("parted", [2, 9])):
        for steps in ends:  # two steps an epoch
            how = Training(steps=steps, **settings)
            train_run(make_task(context=16), SMALL, how, RunData(TEXT, TEXT[:1]), tmp_path / name, {})
    whole, parted = (
        read_tensors(tmp_path / name / "checkpoints/step-00000009/model.safetensors") for name in ("whole", "parted")
    )
    assert all(torch.equal(whole[name], parted[name]) for name in whole)


def test_from_files_to_a_continuation(tmp_path):
    train, dev = tmp_path / "train.txt", tmp_path / "dev.txt"
    train.write_text(copies(1500)), dev.write_text(copies(60, seed=1))
    assert json.loads(command("check", train, "--task", "lm", "--json"))["vocabulary"] == 6 + 2 + 2
    counted, run = tmp_path / "counted", tmp_path / "run"
    command("train", "lm", "--train", train, "--dev", dev, "--out", counted, "--model", "ngram", "--set", "order=4")
    ngram = json.loads(command("evaluate", counted, "--data", dev, "--json"))["metrics"]["loss"]
    # Seven of nine characters are letters. Who does not look back needs ln 6 for each; who copies, for half of them.
    blind = 7 * math.log(6) / 9
    assert ngram > 0.95 * blind
    assert len(command("predict", counted, "abc=", "--set", "max_new=20")) >= 24

    settings = {
        "dim": 64, "layers": 2, "dropout": 0.0, "context": 30, "positions": "none", "position": "Rotary()",
        "learning_rate": 5e-3, "warmup": 20, "batch_tokens": 1024, "evaluate_every": 150, "epochs": 100,
    }  # fmt: skip
    given = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    command("train", "lm", "--train", train, "--dev", dev, "--out", run, "--steps", "150", "--device", "cpu", *given)
    loss = json.loads((run / "scores.json").read_text("utf8"))["metrics"]["loss"]
    assert loss < 0.8 * blind
    again = json.loads(command("evaluate", run, "--data", dev, "--json", "--set", "stride=8"))["metrics"]["loss"]
    assert again < loss  # tokens see more
    assert command("predict", run, "fad=", "--set", "temperature=0", "--set", "max_new=3").startswith("fad=fad")


def command(*words: str | Path) -> str:
    """What a command prints; it must succeed."""
    found = CliRunner().invoke(app, [str(word) for word in words])
    assert found.exit_code == 0, found.output
    return found.stdout


def test_a_share_of_training_blocks_repeats_a_passage() -> None:
    """Half of them repeat their own beginning, half tokens of the text in another order."""
    blocks = TextBlocks(torch.arange(40_000), context=64, memory=0, offset=0, repeats=0.5)
    periods = [next((p for p in range(2, 34) if torch.equal(block[p:], block[:-p])), None) for block in blocks[:400]]
    repeated = [(block, period) for block, period in zip(blocks, periods, strict=False) if period is not None]
    assert len(repeated) == pytest.approx(200, abs=40)
    in_order = sum(bool((block[1:period] - block[: period - 1] == 1).all()) for block, period in repeated)
    assert in_order == pytest.approx(len(repeated) / 2, abs=30)
    plain = TextBlocks(torch.arange(40_000), context=64, memory=0, offset=0)
    assert torch.equal(plain[3], torch.arange(192, 257)) and torch.equal(blocks[3], blocks[3])


def test_a_continuation_begins_after_and_ends_before_the_stop() -> None:
    """A model that counts letters writes up to the line break, and has read one before the prompt."""
    task = Lm.prepare([Document("abc\n" * 9, "t")], LmSettings(stop="\n", max_new=20, context=16, temperature=0))
    prompts = []

    class Counting:
        device = torch.device("cpu")

        def generate(self, tokens, max_new, **rest):
            prompts.append(task.tokenizer.decode(tokens[0].tolist()))
            following = {"\n": "a", "a": "b", "b": "c", "c": "\n"}
            text = prompts[-1]
            for _ in range(max_new):
                text += following[text[-1]]
            return torch.tensor([list(task.encode(text))])

    assert task.predict(Counting(), ["a"])[0].text == "abc"  # type: ignore[arg-type]
    assert prompts == ["\na"]
    unstopped = Lm(LmSettings(max_new=5, context=16, temperature=0), task.tokenizer)
    assert unstopped.predict(Counting(), ["a"])[0].text == "abc\nab"  # type: ignore[arg-type]
