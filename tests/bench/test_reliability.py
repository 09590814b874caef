"""The page about reliability has the figures of benchmarks/results."""

import importlib.util
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "reliability.py"
spec = importlib.util.spec_from_file_location("reliability", FILE)
reliability = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reliability)


@pytest.mark.parametrize("language", reliability.PAGES)
def test_figures_are_those_of_the_results(language: str) -> None:
    text = reliability.PAGES[language].read_text("utf8")
    assert text.count("<!-- figures:") == 6
    assert reliability.fill_page(text, language) == text, "run python benchmarks/reliability.py"


def test_tables_have_the_numbers_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reliability, "RESULTS", tmp_path)
    assert reliability.kernels_table("en") == "Not run yet.\n"
    backends = {"auto": {"tensors": 400}, "sdpa": {"tensors": 600}}
    result = {"device": "cpu", "calls": 10000, "gradients": 700, "backends": backends, "failed": 0}
    (tmp_path / "kernels-cpu.json").write_text(reliability.json.dumps(result))
    assert "| cpu | 10,000 | 1,000 | 700 | auto, sdpa | 0 |" in reliability.kernels_table("zh")


def test_what_was_lost_and_refused_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reliability, "RESULTS", tmp_path)
    made = reliability.kills_table, reliability.hostile_table, reliability.nonfinite_table, reliability.restarts_table
    assert {make("en") for make in made} == {"Not run yet.\n"}
    kills = {"operations": 9, "operations_same_bits": 8, "random_kills": 200, "random_jobs": 50, "random_same_bits": 47}
    kills |= {"signals": 20, "signals_saved": 20, "longest_signal_seconds": 3.2, "flips": 5, "flips_noticed": 3}
    kills |= {"model_flips": 4, "model_flips_noticed": 4, "half_written_files": 6}
    (tmp_path / "kills.json").write_text(reliability.json.dumps(kills))
    rows = reliability.kills_table("en").splitlines()[2:]
    assert [row.split(" | ", 1)[1] for row in rows] == [
        "9 | 1 |",
        "200 | 3 |",
        "20 | 0 |",
        "5 | 2 |",
        "4 | 0 |",
        "6 |  |",
    ]
    bombs = {"bombs": 40, "refused": 39, "max_seconds": 4.23, "max_mib": 396}
    requests = {"requests": 10000, "failed": 2, "max_seconds": 7.9}
    hostile = {"bombs": {"data": bombs, "models": bombs}, "requests": requests}
    (tmp_path / "hostile.json").write_text(reliability.json.dumps(hostile))
    table = reliability.hostile_table("zh")
    assert "| 40 | 39 | 4.2 s | 396 MiB |" in table and "| 10,000 | 9,998 | 7.9 s |" in table
