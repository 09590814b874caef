"""The comparison of layers at toy size: every model on every task, the collected rows, and the page."""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
compare = pytest.importorskip("compare")
tasks = pytest.importorskip("tasks")

TINY = {"dim": 8, "hidden": 8, "layers": 1, "heads": 2, "epochs": 2, "device": "cpu", "precision": "no", "ema": 0}
OWN = {
    "ewt": {"batch_tokens": 40},
    "sst2": {"batch_size": 4},
    "multi30k-en-de": {"batch_tokens": 60, "vocab_size": 300},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of the names that the data sets have, with a handful of sentences."""
    folder, draw = tmp_path_factory.mktemp("data"), Random(0)
    pairs = [("cat", "NOUN"), ("sees", "VERB"), ("the", "DET"), ("dog", "NOUN")]
    for row in (row for row in tasks.ROWS if row.recipe in compare.SHARED_SETTINGS):
        for path in (folder / name for name in (*row.train, *row.dev, *row.test)):
            path.parent.mkdir(exist_ok=True)
            texts = [[draw.choice(pairs) for _ in range(4)] for _ in range(12)]
            if row.recipe == "ewt":
                cells = ("\n".join(f"{n}\t{w}\t_\t{t}" + "\t_" * 6 for n, (w, t) in enumerate(x, 1)) for x in texts)
                text = "\n\n".join(cells) + "\n\n"
            else:
                lines = [" ".join(word for word, _ in text) for text in texts]
                text = "".join(f"{line}\n" for line in lines)
                if row.recipe == "sst2":
                    text = "label\ttext\n" + "".join(f"{n % 2}\t{line}\n" for n, line in enumerate(lines))
            path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return folder


def test_every_model_on_every_task(data: Path, tmp_path: Path) -> None:
    listed = compare.list_jobs(list(compare.SHARED_SETTINGS), 1)
    assert len(set(listed)) == 15 and len(compare.list_jobs(["sst2"], 3)) == 15
    for text in listed:
        job = compare.LayerJob.read(text)
        tasks.train_and_score(replace(job, settings=job.settings | TINY | OWN[job.row.recipe]), data, tmp_path, {})
    last = tmp_path / f"{job.name}-0" / "result.json"
    last.write_text(last.read_text("utf8") + "\n", "utf8")
    tasks.train_and_score(job, data, tmp_path, {})
    assert last.read_text("utf8").endswith("\n\n"), "a job with a result is not run again"
    results = compare.collect_results(tmp_path, 1)
    assert [(row["task"], row["model"]) for row in results["rows"]] == [
        (a, b) for a in compare.SHARED_SETTINGS for b in compare.MODELS
    ]
    assert all(0 <= row["mean"] <= 100 and row["parameters"] > 0 and row["epoch"] >= 0 for row in results["rows"])
    sizes = {row["model"]: row["parameters"] for row in results["rows"] if row["task"] == "ewt"}
    assert len(set(sizes.values())) == 5, "five different models"
    assert results["same"]["ewt"]["dim"] == 8 and "model" not in results["same"]["ewt"], (
        "the settings of the runs, not the current ones"
    )
    page = compare.page(results)
    assert page.count("| transformer |") == 3 and "UD English EWT" in page and "| mlp |" in page


def test_unknown_comparison_is_refused() -> None:
    with pytest.raises(SystemExit, match="no comparison 'cora'"):
        compare.list_jobs(["cora"], 1)


def test_an_epoch_is_its_updates(tmp_path: Path) -> None:
    """Evaluations, pauses between epochs and a last epoch that was cut short do not count."""
    steps = [(0, 0.0), (0, 1.0), (0, 2.0), (1, 50.0), (1, 51.0), (1, 52.0), (2, 80.0), (2, 81.0)]
    lines = [f'{{"kind": "step", "epoch": {epoch}, "time": {time}}}' for epoch, time in steps]
    (tmp_path / "log.jsonl").write_text("\n".join([*lines, '{"kind": "score", "epoch": 1, "time": 90.0}']) + "\n")
    assert compare.epoch_seconds(tmp_path) == 3.0


def test_generated_page_is_current() -> None:
    """`python benchmarks/compare.py --write` was run after the last measurement."""
    results = json.loads(compare.RESULTS.read_text("utf8"))
    for language, path in compare.PAGES.items():
        assert path.read_text("utf8") == compare.page(results, language)
    missing = [
        row.title for row in tasks.ROWS if row.recipe in compare.SHARED_SETTINGS and row.recipe not in results["same"]
    ]
    assert all(title in compare.page(results).partition("Not measured yet")[2] for title in missing)
