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
    assert text.count("<!-- figures:") == 3
    assert reliability.fill_page(text, language) == text, "run python benchmarks/reliability.py"


def test_tables_have_the_numbers_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reliability, "RESULTS", tmp_path)
    assert reliability.kernels_table("en") == "Not run yet.\n"
    backends = {"auto": {"tensors": 400}, "sdpa": {"tensors": 600}}
    result = {"device": "cpu", "calls": 10000, "gradients": 700, "backends": backends, "failed": 0}
    (tmp_path / "kernels-cpu.json").write_text(reliability.json.dumps(result))
    assert "| cpu | 10,000 | 1,000 | 700 | auto, sdpa | 0 |" in reliability.kernels_table("zh")
