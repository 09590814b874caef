"""Experiments 7 to 14: each runs small, says by its threshold what made-up numbers say, and draws in both languages."""

import copy
import json
import math
import random
import warnings

import pytest
import torch

from regard.attention.parts.masks import Causal
from regard.experiments import sequences
from regard.experiments.claims import (
    additive,
    convolution,
    cost,
    feed_forward,
    heads,
    length,
    long_range,
    masked_training,
)
from regard.experiments.learning import silent
from regard.models.heads import IGNORED

MODULES = [length, long_range, cost, convolution, heads, additive, masked_training, feed_forward]
IDS = [module.CLAIM.name for module in MODULES]


def untimed(numbers):
    return {name: value for name, value in numbers.items() if name != "times"}


def leaves(value):
    if isinstance(value, dict):
        return [leaf for one in value.values() for leaf in leaves(one)]
    return [leaf for one in value for leaf in leaves(one)] if isinstance(value, list) else [value]


@pytest.fixture(scope="module")
def toy():
    """The toy numbers of a module, measured once."""
    held = {}

    def numbers(module):
        if module not in held:
            held[module] = module.measure("toy", 0, silent)
        return copy.deepcopy(held[module])

    return numbers


@pytest.mark.parametrize("module", MODULES, ids=IDS)
def test_numbers_are_finite_and_fit_json(module, toy):
    numbers = toy(module)
    assert json.loads(json.dumps(numbers)) == numbers
    assert all(math.isfinite(leaf) for leaf in leaves(numbers) if isinstance(leaf, int | float))


@pytest.mark.parametrize("module", MODULES, ids=IDS)
def test_the_same_seed_gives_the_same_numbers(module, toy):
    again = module.measure("toy", 0, silent)
    assert untimed(again) == untimed(toy(module))


@pytest.mark.parametrize("module", [length, long_range, heads, additive, masked_training], ids=lambda m: m.CLAIM.name)
def test_another_seed_gives_others(module, toy):
    assert untimed(module.measure("toy", 1, silent)) != untimed(toy(module))


@pytest.mark.parametrize("module", MODULES, ids=IDS)
def test_progress_rises_to_the_end(module):
    heard = []
    module.measure("toy", 0, lambda share, text: heard.append(share))
    assert heard and heard == sorted(heard) and heard[0] >= 0 and heard[-1] <= 1


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("module", MODULES, ids=IDS)
def test_figures_are_drawn_in_both_languages(module, language, toy, tmp_path):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure = module.draw(toy(module), language)
        figure.savefig(tmp_path / "figure.png")
    titles = "".join(axes.get_title() for axes in figure.axes)
    assert titles and any("\u4e00" <= letter <= "\u9fff" for letter in titles) == (language == "zh")


@pytest.mark.parametrize("module", MODULES, ids=IDS)
def test_claims_are_told_in_both_languages(module, toy):
    claim, why = module.CLAIM, module.verdict(toy(module)).why
    for text in (claim.title, claim.claim, claim.setup, claim.threshold, why):
        assert any("\u4e00" <= letter <= "\u9fff" for letter in text.zh)
        assert not any("\u4e00" <= letter <= "\u9fff" for letter in text.en)


def test_numbers_and_names_are_the_experiments():
    assert [module.CLAIM.number for module in MODULES] == list(range(7, 15))
    assert [module.CLAIM.name.replace("-", "_") for module in MODULES] == [m.__name__.split(".")[-1] for m in MODULES]


def one(value):
    return {"mean": value, "spread": 0.0, "all": [value]}


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        ([0.9, 0.9, 0.88, 0.85], "holds"),
        ([0.9, 0.85, 0.5, 0.3], "limited"),
        ([0.9, 0.6, 0.5, 0.3], "fails"),
        ([0.5, 0.5, 0.5, 0.5], "fails"),
    ],
)
def test_length_verdicts(found, kind, toy):
    numbers = toy(length)
    numbers["accuracy"]["sinusoidal"] = [one(value) for value in found]
    assert length.verdict(numbers).kind == kind


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({}, "holds"),
        ({"long LSTM": [1.0, 0.6]}, "limited"),  # a recurrent network that finds it easy
        ({"LSTM": [0.3, 0.1]}, "limited"),  # one that never learned the task says nothing of distance
        ({"convolution": [1.0, 0.9]}, "limited"),
        ({"dilated": [1.0, 0.5]}, "limited"),
        ({"attention": [1.0, 0.5]}, "fails"),
    ],
)
def test_long_range_verdicts(changed, kind, toy):
    numbers = toy(long_range)
    found = {name: [0.98, 0.1] for name in long_range.NAMES} | {"attention": [1.0, 0.96], "dilated": [1.0, 1.0]}
    numbers["accuracy"] = {name: [one(value) for value in values] for name, values in (found | changed).items()}
    assert long_range.verdict(numbers).kind == kind


def test_recall_computes_only_what_the_last_token_depends_on():
    torch.manual_seed(0)
    tokens, _ = long_range.asked(3, 30, torch.Generator().manual_seed(0))
    for name in ("convolution", "LSTM"):
        model = long_range.Recall(name, 30).eval()
        whole = model.answer(model.body(model.embed(tokens)))[:, -1]
        torch.testing.assert_close(model(tokens), whole)
    model = long_range.Recall("attention", 30).eval()
    x = model.body.norm(model.embed(tokens))
    whole = model.embed(tokens) + model.body.attention(x, mask=Causal())
    torch.testing.assert_close(model(tokens), model.answer(whole)[:, -1])


def test_a_long_memory_lasts_as_long_as_the_distance():
    torch.manual_seed(0)
    model = long_range.Recall("long LSTM", 100)
    forget = (model.body.cells.bias_ih_l0 + model.body.cells.bias_hh_l0)[long_range.DIM : 2 * long_range.DIM]
    lasts = 1 / (1 - forget.sigmoid())  # tokens until a memory has faded to 1/e
    assert lasts.min() >= 1.9 and 80 < lasts.max() < 102


def grown(power):
    return [float(n**power) for n in (32, 64, 128, 256)]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [({}, "holds"), ({"blocks": (2, 1)}, "limited"), ({"window": (1.7, 1)}, "fails"), ({"attention": (2, 1)}, "fails")],
)
def test_cost_verdicts(changes, kind, toy):
    numbers = toy(cost)
    powers = {name: (1, 1) if name in cost.LINEAR else (2, 2) for name in cost.NAMES} | changes
    numbers["times"]["layers"] = {name: grown(time) for name, (time, _) in powers.items()}
    numbers["bytes"] = {name: grown(memory) for name, (_, memory) in powers.items()}
    assert cost.verdict(numbers).kind == kind


@pytest.mark.parametrize(
    ("error", "left", "kind"), [(1e-7, 0.01, "holds"), (1e-7, 0.3, "limited"), (1e-3, 0.01, "fails")]
)
def test_convolution_verdicts(error, left, kind, toy):
    numbers = toy(convolution)
    numbers["equal"] = [{"kernel": 3, "type": "float32", "output": error, "gradient": 0.0}]
    numbers["equal"] += [{"kernel": 3, "type": "float64", "output": 1e-16, "gradient": 0.0}]
    numbers |= {"learned": one(left), "inside": one(0.99)}
    numbers["marked"] = {"attention": one(0.02), "convolution": one(0.8)}
    assert convolution.verdict(numbers).kind == kind


@pytest.mark.parametrize(
    ("two", "pair", "kind"),
    [
        (0.9, [[0.9, 0.0], [0.1, 0.8]], "holds"),
        (0.9, [[0.0, 0.9], [0.8, 0.1]], "holds"),
        (0.9, [[0.5, 0.5], [0.5, 0.5]], "limited"),
        (0.4, [[0.9, 0.0], [0.1, 0.8]], "fails"),
    ],
)
def test_heads_verdicts(two, pair, kind, toy):
    numbers = toy(heads)
    numbers["both"][:2] = [one(0.3), one(two)]
    numbers["weights"][1] = [pair]
    assert heads.verdict(numbers).kind == kind


@pytest.mark.parametrize(
    ("slower", "unequal", "large", "kind"),
    [(3.0, 0.1, 0.06, "holds"), (3.0, 0.1, 0.0, "limited"), (3.0, 0.0, 0.1, "limited"), (1.5, 0.1, 0.1, "fails")],
)
def test_additive_verdicts(slower, unequal, large, kind, toy):
    numbers = toy(additive)
    numbers["times"]["seconds"] = {"additive": [slower, slower], "dot": [1.0, 1.0]}
    numbers["bytes"] = {"additive": [30, 30], "dot": [10, 10]}
    numbers["unequal"] = {"additive": one(0.8 + unequal), "dot": one(0.8), "plain dot": one(0.8)}
    numbers["found"] = {name: [one(0.9), one(0.9)] for name in additive.NAMES}
    numbers["found"]["additive"][-1] = one(0.9 + large)
    assert additive.verdict(numbers).kind == kind


@pytest.mark.parametrize(
    ("difference", "ngram", "opened", "kind"),
    [
        (1e-6, 2.0, 4.0, "holds"),
        (1e-6, 1.0, 4.0, "limited"),
        (1e-3, 2.0, 4.0, "fails"),
        (1e-6, 2.0, 1.6, "fails"),
    ],
)
def test_masked_training_verdicts(difference, ngram, opened, kind, toy):
    numbers = toy(masked_training)
    numbers |= {"difference": difference, "ngrams": {"2": 3.0, "3": ngram}}
    numbers["kinds"]["masked"] |= {"trained": 1.5, "loss": 1.5, "right": 0.9}
    numbers["kinds"]["open"] |= {"trained": 0.01, "loss": opened, "right": 0.0}
    assert masked_training.verdict(numbers).kind == kind


@pytest.mark.parametrize(
    ("alone", "three", "additivity", "full", "kind"),
    [
        (0.5, 0.5, 1e-7, 1.0, "holds"),
        (0.5, 0.5, 0.3, 1.0, "limited"),
        (0.5, 0.9, 1e-7, 1.0, "limited"),
        (0.9, 0.5, 1e-7, 1.0, "fails"),
        (0.5, 0.5, 1e-7, 0.8, "fails"),
    ],
)
def test_feed_forward_verdicts(alone, three, additivity, full, kind, toy):
    numbers = toy(feed_forward)
    shares = {"attention": alone, "three": three, "linear": 0.5, "full": full}
    numbers["right"] = {name: {task: one(share) for task in feed_forward.TASKS} for name, share in shares.items()}
    numbers["additivity"]["attention"] = additivity
    numbers["places"]["feed-forward"] = {"order": 1e-8, "others": 0.0}
    assert feed_forward.verdict(numbers).kind == kind


def test_a_text_follows_its_chain():
    chain = torch.zeros(length.SYMBOLS, length.SYMBOLS, length.SYMBOLS)
    a, b = torch.meshgrid(torch.arange(length.SYMBOLS), torch.arange(length.SYMBOLS), indexing="ij")
    chain[a, b, (a + 2 * b) % length.SYMBOLS] = 1.0
    text = length.texts(chain, 3, 11, torch.Generator().manual_seed(0))
    assert (text[:, 2:] == (text[:, :-2] + 2 * text[:, 1:-1]) % length.SYMBOLS).all()
    labels = length.likeliest(chain, text)["labels"]
    assert (labels[:, :5] == IGNORED).all()
    assert (labels[:, 5:-1] == text[:, 6:]).all()


def test_the_question_stands_at_its_distance():
    tokens, symbol = long_range.asked(7, 20, torch.Generator().manual_seed(0))
    assert tokens.shape == (7, 21) and (tokens[:, 20] == long_range.ASK).all()
    assert (symbol == tokens[:, 0]).all() and (symbol < long_range.SYMBOLS).all()
    assert ((tokens[:, 1:20] >= long_range.SYMBOLS) & (tokens[:, 1:20] < long_range.ASK)).all()


@pytest.mark.parametrize(("name", "layers", "seen"), [("convolution", 2, 5), ("dilated", 3, 15), ("attention", 1, 31)])
def test_fields_are_as_wide_as_the_layers_reach(name, layers, seen):
    assert sum(value > 1e-6 for value in long_range.field(name, layers, 31, 0)) == seen


def test_doubling_layers_reach_every_distance():
    for distance in range(2, 1100):
        layers = long_range.doublings(distance)
        assert 2 * (2 ** (layers - 1) - 1) < distance <= 2 * (2**layers - 1)


def test_peak_bytes_are_those_of_the_largest_moment():
    def call():
        a = torch.empty(1000, dtype=torch.float32)
        del a
        b = torch.empty(3000, dtype=torch.float32)
        return b.add_(1)

    assert 12000 <= cost.peak_bytes(call) < 16000


def test_steps_give_what_one_pass_gives():
    torch.manual_seed(0)
    layer = cost.MultiHeadAttention(8, 2, mask="Causal()", position="Rotary()").eval()
    x, cache, steps = torch.randn(1, 5, 8), cost.Cache(), []
    with torch.no_grad():
        for token in x.split(1, dim=1):
            steps.append(layer(token, cache=cache.at(0)))
            cache.length += 1
        torch.testing.assert_close(torch.cat(steps, 1), layer(x))


@pytest.mark.parametrize("kernel", [1, 3, 7])
def test_one_head_an_offset_is_the_convolution(kernel):
    found = convolution.compared(kernel, torch.float64, 3)
    assert found["output"] < 1e-14 and found["gradient"] < 1e-14


def test_another_offset_is_not_the_convolution():
    torch.manual_seed(0)
    layer = torch.nn.Conv1d(4, 4, 3, padding=1)
    shifted = convolution.as_attention(layer)
    x = torch.randn(1, 9, 4)
    assert convolution.away(convolution.padded(shifted, x.roll(1, 1), 1), layer(x.mT).mT) > 0.1


def test_heads_have_equal_parameters_and_see_their_relations(toy):
    assert len(set(toy(heads)["parameters"])) == 1
    content, pointers, wanted = heads.rows(4, 6, torch.Generator().manual_seed(0))
    assert (pointers[..., 0] != pointers[..., 1]).all()
    for row, place, which in ((0, 0, 0), (3, 5, 1), (2, 4, 0)):
        assert wanted[row, place, which] == content[row, pointers[row, place, which]]


def test_sentences_are_right_and_broken_ones_are_not():
    draws = random.Random(0)
    assert all(masked_training.right(masked_training.sentence(draws)) for _ in range(200))
    assert masked_training.right(masked_training.EXAMPLE)
    for text in (
        "<BOS> I likes you <EOS>",
        "<BOS> I like you because she sees me <EOS>",
        "<BOS> I like you",
        "<BOS> I you <EOS>",
        "<BOS> <EOS>",
    ):
        assert not masked_training.right(text.split())


def test_one_masked_pass_equals_prefixes_and_an_open_one_does_not():
    torch.manual_seed(0)
    draws = random.Random(0)
    test = [masked_training.sentence(draws) for _ in range(6)]
    gaps = {}
    for mask in ("Causal()", None):
        stack = masked_training.StackConfig(16, 2, 4, mask=mask)
        count = len(masked_training.WORDS)
        model = sequences.tagger(stack, count, count, places=masked_training.LONGEST).eval()
        gap = masked_training.pass_losses(model, test) - masked_training.prefix_losses(model, test)
        gaps[mask] = gap.abs().max().item()
    assert gaps["Causal()"] < 1e-5 < 1e-3 < gaps[None]


def test_feed_forward_tasks_ask_what_they_say():
    generator = torch.Generator().manual_seed(0)
    x, wanted = feed_forward.rows(5, 4, "both", generator)
    bits, pointers = x[..., : feed_forward.BITS], x[..., -4:].argmax(-1)
    for row, place in ((0, 0), (4, 3), (2, 1)):
        assert wanted[row, place] == (bits[row, pointers[row, place]].prod() > 0)


def test_seeds_share_the_way():
    heard = []

    def run(seed, tell):
        tell(0.5, "half")
        return float(seed)

    found = sequences.over_seeds(run, [3, 4], lambda share, text: heard.append(share))
    assert found["all"] == [3.0, 4.0] and heard == [0.25, 0.75]


def test_accuracy_leaves_ignored_places_out():
    class Says(torch.nn.Module):
        def forward(self, tokens, labels):
            logits = torch.nn.functional.one_hot(tokens, 3).float()
            return type("Output", (), {"logits": logits})

    batch = {"tokens": torch.tensor([[0, 1, 2, 2]]), "labels": torch.tensor([[0, 2, IGNORED, 2]])}
    assert sequences.accuracy(Says(), batch) == pytest.approx(2 / 3)
