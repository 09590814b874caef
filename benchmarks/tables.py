"""Tables of numbers: `regard train table` beside scikit-learn's gradient boosting and linear models, by five folds.

    python benchmarks/tables.py                 writes benchmarks/results/tables.json

The data come with scikit-learn (breast cancer, wine, diabetes). Each fold is a test set once; all models are trained on
the same rows of the other four. Ours holds a fifth of these out to choose its weights, scikit-learn's models use them
all. All settings are the defaults.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from sklearn import datasets, linear_model
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from regard.tasks.splits import select_split
from regard.train.run import RunConfig, open_run, read_data, train_run

LOADERS = {
    "breast cancer": datasets.load_breast_cancer,
    "wine": datasets.load_wine,
    "diabetes": datasets.load_diabetes,
}
FOLDS = 5
OURS = {"FT-Transformer (ours)": "transformer", "MLP (ours)": "mlp"}


def write_fold(path: Path, data: Any, test: set[int]) -> None:
    """The table of a data set with a column that says which rows are the test set."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*data.feature_names, "target", "split"])
        for n, (row, label) in enumerate(zip(data.data.tolist(), data.target.tolist(), strict=True)):
            name = label if data.target_names is None else f"class {data.target_names[label]}"
            table.writerow([*row, name, "test" if n in test else "train"])


def score_ours(path: Path, model: str, folder: Path) -> dict[str, float]:
    """The test scores of one of our models, trained with the defaults of the task."""
    config = RunConfig.from_changes("table", {"model": model, "baseline": False, "seed": 0}, train=[path])
    data = read_data(config, lambda faults: None, strict=True)
    task = config.task.prepare(data.train, config.settings)
    train_run(task, config.architecture, config.training, data, folder, config.files)
    task, trained, _ = open_run(folder)
    test = select_split(task.read([path], task.settings), "test")
    return task.evaluate(trained, test.examples).metrics


def score_theirs(model: Any, data: Any, train: Any, test: Any, regression: bool) -> dict[str, float]:
    """The test scores of a model of scikit-learn."""
    model.fit(data.data[train], data.target[train])
    predicted, gold = model.predict(data.data[test]), data.target[test]
    if regression:
        error = predicted - gold
        return {"RMSE": float((error**2).mean() ** 0.5), "R2": float(1 - (error**2).sum() / gold.var() / len(gold))}
    probabilities = model.predict_proba(data.data[test])
    loss = float(log_loss(gold, probabilities, labels=range(probabilities.shape[1])))
    return {"accuracy": float((predicted == gold).mean()), "loss": loss}


def run_data_set(name: str) -> dict[str, Any]:
    """Means and deviations of the scores of all models over the folds of a data set."""
    data = LOADERS[name]()
    regression = getattr(data, "target_names", None) is None
    data.setdefault("target_names", None)
    splitter = (KFold if regression else StratifiedKFold)(FOLDS, shuffle=True, random_state=0)
    theirs = {
        "gradient boosting": HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier,
        "ridge regression" if regression else "logistic regression": None,
    }
    scores: dict[str, list[dict[str, float]]] = {}
    seconds: dict[str, list[float]] = {}
    for fold, (train, test) in enumerate(splitter.split(data.data, data.target)):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "table.csv"
            write_fold(path, data, set(test.tolist()))
            for label, model in OURS.items():
                start = time.perf_counter()
                scores.setdefault(label, []).append(score_ours(path, model, Path(folder) / f"{model}-{fold}"))
                seconds.setdefault(label, []).append(time.perf_counter() - start)
        linear = linear_model.RidgeCV() if regression else linear_model.LogisticRegression(max_iter=5000)
        for label, make in theirs.items():
            start = time.perf_counter()
            model = make_pipeline(StandardScaler(), linear) if make is None else make(random_state=0)
            scores.setdefault(label, []).append(score_theirs(model, data, train, test, regression))
            seconds.setdefault(label, []).append(time.perf_counter() - start)
        print(name, fold, {label: rows[-1] for label, rows in scores.items()}, flush=True)
    metrics = ("RMSE", "R2") if regression else ("accuracy", "loss")
    return {
        "rows": len(data.data),
        "columns": data.data.shape[1],
        "models": {
            label: {
                **{metric: summary([row[metric] for row in rows]) for metric in metrics},
                "seconds a fold": round(mean(seconds[label]), 2),
            }
            for label, rows in scores.items()
        },
    }


def summary(values: list[float]) -> dict[str, float]:
    return {"mean": round(mean(values), 4), "deviation": round(stdev(values), 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "tables.json")
    parser.add_argument("--only", choices=list(LOADERS), help="one data set")
    given = parser.parse_args()
    torch.set_num_threads(1)
    document = {name: run_data_set(name) for name in LOADERS if given.only in (None, name)}
    given.out.write_text(json.dumps(document, indent=1) + "\n")
    for name, result in document.items():
        print(f"\n{name} ({result['rows']} rows, {result['columns']} columns)")
        for label, metrics in result["models"].items():
            text = ", ".join(f"{key} {v['mean']:.4f} ± {v['deviation']:.4f}" for key, v in list(metrics.items())[:-1])
            print(f"  {label:24} {text}, {metrics['seconds a fold']} s a fold")


if __name__ == "__main__":
    main()
