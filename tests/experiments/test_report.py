"""The HTML report and the Markdown index."""

import re
from pathlib import Path
from typing import Any

from regard.experiments import read_results
from regard.experiments.report import render_full_size, render_index, write_report


def test_full_size_results_are_beside_the_usual_ones(tmp_path: Path, experiment_factory: Any, run: Any) -> None:
    for name, number in (("made", 3), ("other", 7), ("alone", 9)):
        run(experiment_factory(name, number), tmp_path / "kept")
    assert render_full_size(tmp_path / "kept", read_results(tmp_path / "kept"), "en") == []
    run(experiment_factory("made", 3), tmp_path / "kept/full", size="full")
    run(experiment_factory("other", 7), tmp_path / "kept/full", size="full", seed=1)  # its verdict differs
    assert [result["size"] for result in read_results(tmp_path / "kept")] == ["toy"] * 3
    title, opening, table, provenance = render_full_size(tmp_path / "kept", read_results(tmp_path / "kept"), "en")
    assert "2 were measured" in opening and "in 1 of them (others: `other`)" in opening
    assert "at this size: `alone`" in opening
    assert [line.split(" | ")[1:4] for line in table.splitlines()[2:]] == [
        ["`made`", "✓ holds", "✓ holds"],
        ["`other`", "✓ holds", "✗ does not hold"],
    ]
    assert title in render_index(tmp_path / "kept", tmp_path / "index.md", "en") and "full size" in provenance
    assert "`other`" in render_index(tmp_path / "kept", tmp_path / "index.md", "zh").split("## 完整规模")[1]
    page = write_report(tmp_path / "kept").read_text(encoding="utf-8")
    assert page.count("At full size") == 2 and "run other --seed 1 --full" in page


def test_report_has_both_languages_and_escapes(tmp_path: Path, experiment_factory: Any, run: Any) -> None:
    run(experiment_factory(), tmp_path)
    run(experiment_factory("other", 7), tmp_path, seed=1)
    text = write_report(tmp_path).read_text(encoding="utf-8")
    assert len(re.findall(r'<img lang="(?:en|zh)" [^>]*src="(?:made|other)\.(?:en|zh)\.png"', text)) == 4
    assert text.index('href="#other"') < text.index('href="#made"')
    assert '<span lang="en">five &lt; six &amp; “seven”</span><span lang="zh">五 &lt; 六</span>' in text
    assert '<span class="badge holds">✓' in text and '<span class="badge fails">✗' in text
    assert "{{" not in text and not re.search(r'(src|href)="https?:', text)


def test_report_names_a_missing_figure(tmp_path: Path, experiment_factory: Any, run: Any) -> None:
    run(experiment_factory(), tmp_path)
    (tmp_path / "made.en.png").unlink()
    assert "made.en.png?" in write_report(tmp_path).read_text(encoding="utf-8")


def test_report_skips_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("[1]", encoding="utf-8")
    assert "<section" not in write_report(tmp_path).read_text(encoding="utf-8")
