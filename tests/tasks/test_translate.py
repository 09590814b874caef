"""Translation: what is learned, scored and written; from files through the commands."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from typer.testing import CliRunner

import regard as rg
from regard.cli import app
from regard.data.batching import batch_by_size
from regard.data.text import Parallel
from regard.models.heads import IGNORED
from regard.settings import update_each
from regard.tasks.architecture import GRAPHS, HIERARCHICAL, MODELS, TEXTS, Architecture
from regard.tasks.metrics.bleu import bleu
from regard.tasks.metrics.rouge import rouge
from regard.tasks.translate import Translate, TranslateSettings
from regard.train.recipes import find_recipe

NOUNS = {"cat": "猫", "dog": "狗", "bird": "鸟", "horse": "马", "fish": "鱼"}
COLOURS = {"red": "红", "blue": "蓝", "black": "黑", "white": "白"}
VERBS = {"sees": "看见", "hears": "听见", "likes": "喜欢"}
SMALL = Architecture(dim=16, layers=1, heads=2, dropout=0.0)


def sentences(count: int, seed: int = 0) -> list[Parallel]:
    """Different sentences of a small language; in the other one the verb stands last."""
    found: dict[str, Parallel] = {}
    draw = random.Random(seed)
    while len(found) < count:
        (a, b), (c, d) = draw.choices(list(COLOURS), k=2), draw.choices(list(NOUNS), k=2)
        verb = draw.choice(list(VERBS))
        source = f"the {a} {c} {verb} the {b} {d}"
        target = f"{COLOURS[a]}{NOUNS[c]}把{COLOURS[b]}{NOUNS[d]}{VERBS[verb]}"
        found[source] = Parallel(source, target, (target,))
    return list(found.values())


def make_task(examples: list[Parallel], **settings) -> Translate:
    return Translate.prepare(examples, TranslateSettings(**{"unit": "words", "tokenize": "zh", **settings}))


@pytest.mark.parametrize("how", [{}, {"joint": False}, {"copy_source": True}])
def test_a_batch_is_the_sum_of_its_examples(how):
    examples = [Parallel("a b c", "x"), Parallel("a", "y z x y"), Parallel("c b", "z y")]
    task = make_task(examples, **how)
    torch.manual_seed(0)
    model = task.config(SMALL).build()
    whole, parts = task.batch(examples), [task.batch([example]) for example in examples]
    together = task.loss(model, whole, 0.1)
    apart = torch.stack([task.loss(model, part, 0.1) for part in parts]).sum()
    torch.testing.assert_close(together, apart)
    assert task.count(whole) == sum(map(task.count, parts)) == 1 + 1 + 4 + 1 + 2 + 1  # each text and its end
    assert task.sizes(examples) == [5 + 3, 3 + 6, 4 + 4]  # each between start and end


def test_the_loss_is_cross_entropy_of_the_next_target():
    examples = sentences(3)
    task = make_task(examples)
    model = task.config(SMALL).build()
    batch = task.batch(examples)
    inputs = {name: batch[name] for name in ("tokens", "lengths", "targets", "target_lengths")}
    logits = model(**inputs).logits
    wanted = functional.cross_entropy(
        logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORED, reduction="sum"
    )
    torch.testing.assert_close(task.loss(model, batch), wanted)
    target = task.tokenizer.target
    assert target.decode(batch["targets"][0]) == target.decode(batch["labels"][0].clamp(min=0)) != ""
    assert (
        batch["targets"][0, 0] == target.start and batch["labels"][0][batch["labels"][0] != IGNORED][-1] == target.end
    )


@pytest.mark.parametrize("name", [name for name in MODELS if name not in (*GRAPHS, *TEXTS, HIERARCHICAL)])
def test_every_model_learns_and_writes(name):
    examples = sentences(6)
    task = make_task(examples, training_beams=2)
    torch.manual_seed(0)
    model = task.config(Architecture(model=name, dim=16, layers=1, heads=2, dropout=0.0, block_size=8)).build()
    batch = task.batch(examples)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(25):
        losses.append(task.loss(model, batch))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.6 * losses[0]
    model.eval()
    assert len(task.translate(model, ["the red cat", "  ", "the dog sees the fish"])) == 3
    assert task.translate(model, [" "]) == [""]


def test_recurrent_decoders_learn_from_their_source_as_fast_as_others():
    """All are told the mean of it; an LSTM that only began with it, in states as small as they are, did not hear it."""
    examples = sentences(128)
    task = make_task(examples)
    batch = task.batch(examples)
    wrong = {**batch, "tokens": batch["tokens"].roll(1, 0)}  # all sentences are equally long

    def train_model(name: str) -> tuple[float, float]:
        torch.manual_seed(0)
        model = task.config(Architecture(model=name, dim=32, layers=2, heads=2, dropout=0.0)).build()
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        for _ in range(60):
            optimizer.zero_grad()
            (task.loss(model, batch) / task.count(batch)).backward()
            optimizer.step()
        with torch.no_grad():
            right, other = (float(task.loss(model, one)) / task.count(batch) for one in (batch, wrong))
        return right, other

    wanted = train_model("mlp")[0]
    for name in ("rnn", "gru", "lstm", "lstm+attention"):
        right, other = train_model(name)
        assert right < wanted and other > 1 + right, name


@pytest.mark.parametrize("name", [*GRAPHS, *TEXTS, HIERARCHICAL])
def test_models_of_other_tasks_are_refused(name):
    with pytest.raises(rg.Unsupported, match=name):
        make_task(sentences(3)).config(Architecture(model=name))


def test_r_drop_is_two_losses_and_their_divergence():
    """By hand, from two runs of the model with the dropout of the one call over the doubled batch."""
    task = make_task(sentences(6), r_drop=3.0)
    torch.manual_seed(0)
    model = task.config(replace(SMALL, dropout=0.3)).build()
    batch = task.batch(sentences(6))
    doubled = {name: torch.cat([x, x]) for name, x in batch.items()}
    wanted = doubled["labels"] != IGNORED
    inputs = {name: doubled[name] for name in ("tokens", "lengths", "targets", "target_lengths")}
    torch.manual_seed(1)
    p, q = model(**inputs, wanted=wanted).logits.double().chunk(2)
    labels = batch["labels"][batch["labels"] != IGNORED]
    apart = sum(functional.cross_entropy(one, labels, label_smoothing=0.1, reduction="sum") for one in (p, q)) / 2
    p, q = p.log_softmax(-1), q.log_softmax(-1)
    both = functional.kl_div(q, p, log_target=True, reduction="sum")
    both = both + functional.kl_div(p, q, log_target=True, reduction="sum")
    assert float(both) > 0.01
    torch.manual_seed(1)
    torch.testing.assert_close(task.loss(model, batch, 0.1).double(), apart + 3.0 / 4 * both, rtol=1e-5, atol=1e-4)
    model.eval()
    plain = make_task(sentences(6)).loss(model, batch, 0.1)
    torch.testing.assert_close(task.loss(model, batch, 0.1), plain)


def test_copies_need_one_vocabulary():
    with pytest.raises(rg.BadInput, match="joint=true"):
        make_task(sentences(3), copy_source=True, joint=False).config(SMALL).build()


def test_texts_are_cut_and_keep_their_end():
    examples = [Parallel("a b c d e f", "x y z x y z")]
    task = make_task(examples, max_length=4)
    batch = task.batch(examples)
    assert task.tokenizer.pieces(batch["tokens"][0]) == ["<s>", "a", "b", "</s>"]
    assert task.tokenizer.pieces(batch["labels"][0]) == ["x", "y", "</s>"]
    assert task.describe(examples)["cut"] == 1


def test_no_answer_is_much_longer_than_what_was_learned():
    task = make_task([Parallel("a b c d e f g h i j", "x y")])
    model = task.config(SMALL).build()
    written = task.generate(model, task.rows(task.tokenizer, ["a b c d e f g h i j"]))
    assert task.max_target == 4 and written.shape[1] <= 1 + 6  # after the start
    again = Translate.from_dict(task.as_dict(), task.settings, task.tokenizer)
    assert again.max_target == 4 and again.beams == 5


def test_rouge_by_hand():
    # 6 and 6 words share the, sat, on, the, mat: 5; pairs sat-on, on-the, the-mat: 3 of 5; the longest in order: 5.
    found = rouge(["The cat sat on the mat."], [["the dog sat on the mat"]])
    assert found == pytest.approx({"rouge1": 5 / 6, "rouge2": 3 / 5, "rougeL": 5 / 6})
    # Words in another order are shared but not in order: b a / a b.
    assert rouge(["b a"], [["a b"]]) == pytest.approx({"rouge1": 1.0, "rouge2": 0.0, "rougeL": 0.5})
    # A word counts as often as both have it: 1 of 3 and of 1, F1 2·1/(3+1).
    assert rouge(["a a a"], [["a"]])["rouge1"] == pytest.approx(0.5)
    # The best of several references; the mean over texts; a character of Chinese is a word.
    assert rouge(["x y", "我爱你"], [["z", "x y"], ["我恨你"]])["rouge1"] == pytest.approx((1 + 2 / 3) / 2)
    assert rouge(["", "a"], [["a"], [""]]) == {"rouge1": 0.0, "rouge2": 0.0, "rougeL": 0.0}


def test_batches_by_length_hold_every_text_once():
    sizes = [5, 1, 9, 3, 3, 20]
    batches = batch_by_size(sizes, 10)
    assert sorted(n for batch in batches for n in batch) == list(range(6))
    assert all(sum(sizes[n] for n in batch) <= 10 for batch in batches if len(batch) > 1)
    assert (batch_by_size([], 10)) == []


def test_from_files_to_a_translation(tmp_path):
    examples = sentences(330)
    train, dev = tmp_path / "train.tsv", tmp_path / "dev.tsv"
    for path, some in ((train, examples[:300]), (dev, examples[300:])):
        path.write_text("en\tzh\n" + "".join(f"{e.source}\t{e.target}\n" for e in some), "utf8")
    checked = json.loads(command("check", train, "--task", "translate", "--set", "unit=words", "--json"))
    assert checked["pairs"] == 300 and checked["unknown"] == 0.0 and checked["faults"] == []

    run = tmp_path / "run"
    settings = {
        "unit": "words", "joint": "false", "tokenize": "zh", "dim": 48, "layers": 1, "hidden": 96, "dropout": 0.0,
        "learning_rate": 5e-3, "warmup": 20, "batch_tokens": 512, "evaluate_every": 240, "epochs": 60, "beams": 3,
    }  # fmt: skip
    given = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    command(
        "train", "translate", "--train", train, "--dev", dev, "--out", run, "--steps", "240", "--device", "cpu", *given
    )
    scores = json.loads((run / "scores.json").read_text("utf8"))
    # Copying the source, or the commonest sentence of training, scores below 20.
    constant = bleu([examples[0].target] * 30, [[e.target] for e in examples[300:]], "zh")[0]["bleu"]
    assert scores["metrics"]["bleu"] > 80 > 20 > constant
    assert len((run / "hypotheses.txt").read_text("utf8").splitlines()) == 30

    again = json.loads(command("evaluate", run, "--data", dev, "--json"))
    assert again["metrics"]["bleu"] > 80 and "tok:zh" in again["signatures"]["bleu"]
    rouged = json.loads(command("evaluate", run, "--data", dev, "--set", "metric=rouge", "--json"))
    assert rouged["metrics"]["rouge1"] > 0.8 and "bleu" not in rouged["metrics"]
    assert "红猫把" in command("predict", run, "the red cat sees the blue dog")


@pytest.mark.parametrize("name", ["multi30k-en-de", "multi30k-en-fr", "multi30k-cpu", "tatoeba-en-zh", "scitldr"])
def test_recipes_name_settings_that_exist(name):
    recipe = find_recipe(name)
    settings, architecture, training = update_each(
        (Translate.Settings(), Translate.ARCHITECTURE, Translate.TRAINING), recipe.settings
    )
    assert recipe.task == "translate" and settings.vocab_size == recipe.settings["vocab_size"]
    with torch.device("meta"):
        make_task(sentences(3)).config(architecture).build()
    assert training.learning_rate == recipe.settings["learning_rate"]


def test_two_files_that_do_not_correspond(tmp_path):
    (tmp_path / "a.en").write_text("one\ntwo\nthree\n")
    (tmp_path / "a.de").write_text("eins\nzwei\n")
    reading = Translate.read([tmp_path / "a.en", tmp_path / "a.de"], TranslateSettings())
    assert not reading.examples
    assert "a.de:3: ends after 2 lines, but a.en has 3" in str(reading.faults[0])


def test_what_is_too_small_or_missing_is_said():
    with pytest.raises(rg.BadInput, match="size is 100, but the 256 bytes"):
        Translate.prepare(sentences(3), TranslateSettings(vocab_size=100))
    task = make_task(sentences(3))
    with pytest.raises(rg.BadInput, match="no pair of texts"):
        task.evaluate(task.config(SMALL).build(), [])


def command(*words: str | Path) -> str:
    """What a command prints; it must succeed."""
    found = CliRunner().invoke(app, [str(word) for word in words])
    assert found.exit_code == 0, found.output
    return found.stdout
