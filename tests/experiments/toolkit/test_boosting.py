"""Boosted trees: thresholds, interactions, irrelevant columns and the order of the columns."""

import numpy as np

from regard.experiments.toolkit.boosting import BoostedTrees


def make_rows(rows: int, columns: int = 5) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, columns))


def test_one_split_finds_the_threshold() -> None:
    x = make_rows(2000)
    y = x[:, 3] > 0.5
    model = BoostedTrees(trees=1, depth=1).fit(x, y)
    (columns, last, values) = model.fitted[0]
    assert columns.tolist() == [3] and abs(model.edges[last[0], 3] - 0.5) < 0.1
    assert values[0] < 0 < values[1]


def test_a_band_needs_depth() -> None:
    x = make_rows(2000)
    y = np.abs(x[:, 1]) > 0.6745
    shallow, deep = (BoostedTrees(trees=1, depth=depth).fit(x[:1000], y[:1000]) for depth in (1, 2))
    right = [(model.predict(x[1000:]) == y[1000:]).mean() for model in (shallow, deep)]
    assert right[1] > 0.9 > right[0]


def test_more_trees_lower_the_error_of_an_interaction() -> None:
    x = make_rows(3000)
    y = x[:, 0] * x[:, 1] > 0
    right = [(BoostedTrees(trees=n).fit(x[:2000], y[:2000]).predict(x[2000:]) == y[2000:]).mean() for n in (1, 60)]
    assert right[1] > 0.95 and right[1] > right[0]


def test_order_of_the_columns_does_not_matter() -> None:
    x, order = make_rows(600), [4, 2, 0, 1, 3]
    y = (x[:, 0] > 0) ^ (x[:, 2] > 0.3)
    given, permuted = (BoostedTrees(trees=20).fit(rows, y).predict(rows) for rows in (x, x[:, order]))
    assert (given == permuted).mean() > 0.98
