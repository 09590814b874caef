"""Finding, running and keeping experiments, and the page that shows them."""

import json
import re
import sys
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from regard.cli import app
from regard.errors import BadInput, Missing
from regard.experiments import learning, report, results, runner
from regard.experiments.experiment import Both, Claim, Verdict
from regard.plots.figures import save_figure

TEXT = Both("five < six & “seven”", "五 < 六")


def made(name: str = "made", number: int = 99, **changed: Any) -> Any:
    """An experiment that counts how often it was measured."""
    calls: list[int] = []

    def measure(size: str, seed: int, tell: Any) -> dict[str, Any]:
        calls.append(seed)
        tell(0.5, "half")
        return {"value": 2 * seed, "times": {1: 0.5}}

    def draw(numbers: dict[str, Any], language: str) -> Any:
        with learning.panels(language, 1) as (figure, axes):
            axes[0].set_title("图" if language == "zh" else "figure")
            return figure

    def verdict(numbers: dict[str, Any]) -> Verdict:
        assert "1" in numbers["times"], "the verdict sees what the file will hold"
        return Verdict("holds" if numbers["value"] > 5 else "fails", TEXT, TEXT)

    claim = Claim(number, name, TEXT, TEXT, TEXT, TEXT)
    parts = {"CLAIM": claim, "measure": measure, "verdict": verdict, "draw": draw, "calls": calls}
    return SimpleNamespace(**(parts | changed))


def run(one: Any, out: Path, seed: int = 3, **more: Any) -> dict[str, Any]:
    return runner.run(one, out, **{"size": "toy", "seed": seed, "tell": learning.silent} | more)


def test_every_experiment_is_found_in_order() -> None:
    claims = [one.CLAIM for one in runner.found()]
    numbers = [claim.number for claim in claims]
    assert numbers == sorted(set(numbers))
    assert [claim.name for claim in claims if claim.number <= 6] == [
        "soft-dictionary",
        "grey-ball",
        "fixed-weights",
        "scaling",
        "embedding-scaling",
        "order",
    ]


def test_every_text_is_there_in_both_languages() -> None:
    for claim in (one.CLAIM for one in runner.found()):
        for text in (claim.title, claim.claim, claim.setup, claim.threshold):
            assert text.en and not re.search("[\u4e00-\u9fff]{6}", text.en), claim.name
            assert re.search("[\u4e00-\u9fff]", text.zh), claim.name


def test_one_is_found_by_its_name() -> None:
    assert runner.find("grey-ball").CLAIM.number == 2
    with pytest.raises(BadInput, match="grey-ball"):
        runner.find("gray-ball")
    with pytest.raises(BadInput, match="no experiment 'runner'"):
        runner.find("runner")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"CLAIM": "a claim"}, "not a Claim"),
        ({"CLAIM": Claim(99, "other", TEXT, TEXT, TEXT, TEXT)}, "file and name must agree"),
        ({"draw": None}, r"no draw\(\)"),
    ],
)
def test_a_broken_one_is_named(changed: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("regard.experiments.claims.made")
    module.__dict__.update(vars(made(**changed)))
    monkeypatch.setitem(sys.modules, "regard.experiments.claims.made", module)
    with pytest.raises(BadInput, match=f"made.*{said}"):
        runner.load("made")


def test_one_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "regard.experiments.claims.made", None)
    with pytest.raises(BadInput, match="made cannot be read: ModuleNotFoundError"):
        runner.load("made")


def test_two_of_one_number_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"first": made("first"), "second": made("second")}
    monkeypatch.setattr(runner, "module_names", lambda: list(both))
    monkeypatch.setattr(runner, "load", both.__getitem__)
    with pytest.raises(BadInput, match="first and second both have the number 99"):
        runner.found()


def test_what_is_saved_says_everything(tmp_path: Path) -> None:
    document = run(made(), tmp_path)
    assert document == json.loads((tmp_path / "made.json").read_text(encoding="utf-8"))
    text = {"en": TEXT.en, "zh": TEXT.zh}
    assert document["verdict"] == {"kind": "holds", "key": text, "why": text}
    assert document["claim"]["threshold"]["zh"] == TEXT.zh
    assert (document["seed"], document["size"]) == (3, "toy")
    assert document["versions"]["torch"] == torch.__version__
    assert {"date", "seconds", "devices"} <= set(document)
    assert {path.name for path in tmp_path.iterdir()} == {"made.json", "made.en.png", "made.zh.png"}


def test_what_is_there_is_kept_until_something_changes(tmp_path: Path) -> None:
    one = made()
    first = run(one, tmp_path)
    assert run(one, tmp_path) == first
    assert one.calls == [3]
    run(one, tmp_path, seed=4)
    run(one, tmp_path, seed=4, again=True)
    assert one.calls == [3, 4, 4]
    stricter = made(CLAIM=Claim(99, "made", TEXT, TEXT, TEXT, Both("stricter", "更严")))
    run(stricter, tmp_path, seed=4)
    assert stricter.calls == [4]


def test_a_lost_figure_is_drawn_again_without_measuring(tmp_path: Path) -> None:
    one = made()
    run(one, tmp_path)
    (tmp_path / "made.zh.png").unlink()
    run(one, tmp_path)
    assert (tmp_path / "made.zh.png").exists()
    assert one.calls == [3]


def test_what_is_kept_is_judged_anew(tmp_path: Path) -> None:
    run(made(), tmp_path)
    worded = made(verdict=lambda numbers: Verdict("limited", TEXT, TEXT))
    assert run(worded, tmp_path)["verdict"]["kind"] == "limited"
    assert '"limited"' in (tmp_path / "made.json").read_text(encoding="utf-8")
    assert not worded.calls
    other = made(verdict=lambda numbers: Verdict("holds", TEXT, TEXT if numbers["value"] else numbers["newer"]))
    (tmp_path / "made.json").write_text((tmp_path / "made.json").read_text("utf-8").replace('"value": 6', '"value": 0'))
    run(other, tmp_path)
    assert other.calls == [3]


def test_a_torn_file_is_measured_again(tmp_path: Path) -> None:
    one = made()
    run(one, tmp_path)
    (tmp_path / "made.json").write_text('{"claim": ', encoding="utf-8")
    run(one, tmp_path)
    assert one.calls == [3, 3]


@pytest.mark.parametrize("value", [float("nan"), torch.ones(2)])
def test_numbers_must_be_json(value: Any, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="numbers of made"):
        run(made(measure=lambda size, seed, tell: {"value": value}), tmp_path)
    assert not list(tmp_path.iterdir())


def test_one_that_cannot_run_here_does_not_stop_the_others(tmp_path: Path) -> None:
    def refuse(size: str, seed: int, tell: Any) -> dict[str, Any]:
        raise Missing("pip install something")

    done, refused = runner.run_all([made("first", 1, measure=refuse), made()], tmp_path, size="toy", seed=0)
    assert [document["name"] for document in done] == ["made"]
    assert list(refused) == ["first"]


def test_several_run_side_by_side_and_say_the_same(tmp_path: Path) -> None:
    chosen = [runner.find(name) for name in ("heads", "soft-dictionary")]
    beside, _ = runner.run_all(chosen, tmp_path / "two", size="toy", seed=0, jobs=2)
    alone, _ = runner.run_all(chosen, tmp_path / "one", size="toy", seed=0)
    assert [document["name"] for document in beside] == ["heads", "soft-dictionary"]
    for first, second in zip(beside, alone, strict=True):
        assert {**first["numbers"], "times": None} == {**second["numbers"], "times": None}


def test_what_measures_time_runs_before_the_others_and_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Pool:
        def __init__(self, *how: Any) -> None:
            self.timed = timed.calls.copy()

        def __enter__(self) -> Any:
            assert self.timed == [0], "measured before there is a pool"
            return self

        def __exit__(self, *error: Any) -> None: ...

        def submit(self, work: Any, name: str, out: Path, **how: Any) -> Future[Any]:
            names.append(name)
            done: Future[Any] = Future()
            done.set_result(Missing("not here"))
            return done

    timed, names = made("timed", 50, TIMED=True), []
    monkeypatch.setattr(runner, "ProcessPoolExecutor", Pool)
    chosen = [made("first", 1), timed, made("last", 99)]
    documents, refused = runner.run_all(chosen, tmp_path, size="toy", seed=0, jobs=2)
    assert [one["name"] for one in documents] == ["timed"]
    assert names == list(refused) == ["first", "last"]


def test_measuring_has_one_thread_and_whole_numbers_and_gives_the_others_back(tmp_path: Path) -> None:
    seen: list[tuple[int, bool]] = []

    def measure(size: str, seed: int, tell: Any) -> dict[str, Any]:
        seen.append((torch.get_num_threads(), torch.backends.cudnn.allow_tf32))
        return {"value": 1, "times": {1: 0.5}}

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run(made(measure=measure), tmp_path)
        assert seen == [(1, False)] and torch.get_num_threads() == 2 and torch.backends.cudnn.allow_tf32
    finally:
        torch.set_num_threads(before)


def test_figures_are_small_files(tmp_path: Path) -> None:
    from PIL import Image, ImageChops

    def draw(numbers: dict[str, Any], language: Any) -> Any:
        with learning.panels(language, 2) as (figure, axes):
            axes[0].imshow(torch.arange(400.0).reshape(20, 20).numpy(), cmap="viridis")
            for n in range(7):
                axes[1].plot([0, 1], [n, n + 1], label=str(n), **learning.style(n))
            axes[1].legend()
            return figure

    run(made(draw=draw), tmp_path)
    save_figure(draw({}, "en"), tmp_path / "all.png")
    with Image.open(tmp_path / "made.en.png") as small, Image.open(tmp_path / "all.png") as whole:
        assert small.mode == "P" and small.size == whole.size
        off = ImageChops.difference(small.convert("RGB"), whole.convert("RGB"))
    assert max(most for _, most in off.getextrema()) <= 16, "no colour is another's"
    assert (tmp_path / "made.en.png").stat().st_size < 0.6 * (tmp_path / "all.png").stat().st_size


def test_saved_results_are_found_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(results, "CHECKOUT", tmp_path / "docs")
    assert results.folder() is None and results.saved(tmp_path / "none") == []
    run(made("late", 9), tmp_path / "docs")
    run(made("early", 3), tmp_path / "docs")
    assert results.folder() == tmp_path / "docs"
    assert [one["name"] for one in results.saved(tmp_path / "docs")] == ["early", "late"]
    assert results.figure_path(tmp_path / "docs", "late", "zh").exists()
    run(made(), tmp_path / "experiments")
    assert results.folder() == results.OWN


def test_index_is_a_table_with_figures(tmp_path: Path) -> None:
    assert call("report", str(tmp_path / "kept")).exit_code == 1
    run(made(), tmp_path / "kept")
    run(made("other", 7), tmp_path / "kept", seed=1)
    done = call("report", str(tmp_path / "kept"), "--index", str(tmp_path / "index.md"), "--json")
    assert done.exit_code == 0, done.stderr
    page, english, chinese = (Path(path) for path in json.loads(done.stdout)["files"])
    assert page.exists() and chinese.name == "index.zh.md"
    rows = [line.split(" | ") for line in english.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert [row[1] for row in rows[2:]] == ["`other`", "`made`"]
    assert [row[3] for row in rows[2:]] == ["✗ does not hold", "✓ holds"]
    assert all(len(row) == 6 for row in rows)
    for path, language in ((english, "en"), (chinese, "zh")):
        linked = re.findall(r"\(([^)]*\.png)\)", path.read_text(encoding="utf-8"))
        assert linked == [f"kept/other.{language}.png", f"kept/made.{language}.png"]
        assert all((tmp_path / link).exists() for link in linked)


def test_results_at_full_size_stand_beside_the_usual_ones(tmp_path: Path) -> None:
    for name, number in (("made", 3), ("other", 7), ("alone", 9)):
        run(made(name, number), tmp_path / "kept")
    assert report.full_size(tmp_path / "kept", results.saved(tmp_path / "kept"), "en") == []
    run(made("made", 3), tmp_path / "kept/full", size="full")
    run(made("other", 7), tmp_path / "kept/full", size="full", seed=1)  # whose verdict is another
    assert [one["size"] for one in results.saved(tmp_path / "kept")] == ["toy"] * 3
    title, told, table, origin = report.full_size(tmp_path / "kept", results.saved(tmp_path / "kept"), "en")
    assert "2 were measured" in told and "in 1 of them (others: `other`)" in told and "at this size: `alone`" in told
    assert [line.split(" | ")[1:4] for line in table.splitlines()[2:]] == [
        ["`made`", "✓ holds", "✓ holds"],
        ["`other`", "✓ holds", "✗ does not hold"],
    ]
    assert title in report.index(tmp_path / "kept", tmp_path / "index.md", "en") and "full size" in origin
    assert "`other`" in report.index(tmp_path / "kept", tmp_path / "index.md", "zh").split("## 完整规模")[1]
    page = report.write(tmp_path / "kept").read_text(encoding="utf-8")
    assert page.count("At full size") == 2 and "run other --seed 1 --full" in page


def test_progress_tells_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    progress = runner.Progress("made", every=0.0)
    progress.began -= 30
    progress(0.25, "loss 1.5")
    told = capsys.readouterr().err
    assert "25 %" in told and "0:30 gone, 1:3" in told and "loss 1.5" in told


def test_page_has_both_languages_and_escapes(tmp_path: Path) -> None:
    run(made(), tmp_path)
    run(made("other", 7), tmp_path, seed=1)
    text = report.write(tmp_path).read_text(encoding="utf-8")
    assert len(re.findall(r'<img lang="(?:en|zh)" [^>]*src="(?:made|other)\.(?:en|zh)\.png"', text)) == 4
    assert text.index('href="#other"') < text.index('href="#made"')
    assert '<span lang="en">five &lt; six &amp; “seven”</span><span lang="zh">五 &lt; 六</span>' in text
    assert '<span class="badge holds">✓' in text and '<span class="badge fails">✗' in text
    assert "{{" not in text and not re.search(r'(src|href)="https?:', text)


def test_page_says_which_figure_is_missing(tmp_path: Path) -> None:
    run(made(), tmp_path)
    (tmp_path / "made.en.png").unlink()
    assert "made.en.png?" in report.write(tmp_path).read_text(encoding="utf-8")


def test_page_ignores_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("[1]", encoding="utf-8")
    assert "<section" not in report.write(tmp_path).read_text(encoding="utf-8")


def call(*words: str) -> Any:
    return CliRunner().invoke(app, ["experiment", *words])


@pytest.mark.parametrize("command", ["list", "run", "report"])
def test_help_has_an_example(command: str) -> None:
    done = call(command, "--help")
    assert done.exit_code == 0
    assert f"Example: regard experiment {command}" in done.stdout
    assert "--json" in done.stdout


def test_list_names_each() -> None:
    assert "grey-ball" in call("list").stdout
    assert json.loads(call("list", "--json").stdout)[0]["name"] == "soft-dictionary"


def test_run_writes_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "find", lambda name: made())
    done = call("run", "made", "--size", "toy", "--seed", "5", "--out", str(tmp_path / "x"), "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert Path(found["report"]).exists()
    assert found["experiments"][0]["numbers"]["value"] == 10
    text = call("run", "made", "--size", "toy", "--seed", "1", "--out", str(tmp_path / "x"))
    assert text.exit_code == 0, "a claim that does not hold is a result"
    assert "fails" in text.stdout and "report.html" in text.stdout


def test_run_all_ends_with_1_where_one_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size: str, seed: int, tell: Any) -> dict[str, Any]:
        raise Missing("pip install something")

    monkeypatch.setattr(runner, "found", lambda: [made("first", 1, measure=refuse), made()])
    done = call("run", "all", "--out", str(tmp_path), "--json", "--jobs", "1")
    assert done.exit_code == 1
    assert "first did not run: pip install something" in done.stderr
    assert [one["name"] for one in json.loads(done.stdout)["experiments"]] == ["made"]


@pytest.mark.parametrize("words", [("--size", "huge"), ("--full", "--size", "toy")])
def test_wrong_size_ends_with_2(words: tuple[str, ...], tmp_path: Path) -> None:
    assert call("run", "order", *words, "--out", str(tmp_path)).exit_code == 2


def test_wrong_name_ends_with_1(tmp_path: Path) -> None:
    done = call("run", "gray-ball", "--out", str(tmp_path))
    assert done.exit_code == 1
    assert "Did you mean 'grey-ball'?" in done.stderr


def test_fit_learns_and_tells() -> None:
    model, x = nn.Linear(3, 1), torch.randn(64, 3)
    told: list[float] = []
    losses = learning.fit(
        model,
        lambda: (model(x) - x.sum(1, keepdim=True)).square().mean(),
        200,
        0.1,
        lambda share, text: told.append(share),
    )
    assert losses[-1] < 0.01 * losses[0]
    assert told == sorted(told) and len(told) == 20
    assert not model.training


def test_fit_stops_when_it_is_enough() -> None:
    model, x = nn.Linear(3, 1), torch.randn(64, 3)
    losses = learning.fit(model, lambda: (model(x) - x.sum(1, keepdim=True)).square().mean(), 1000, 0.1, enough=0.01)
    assert learning.SETTLED < len(losses) < 1000
    assert max(losses[-learning.SETTLED :]) < 0.01 <= losses[-learning.SETTLED - 1]


def test_rate_rises_then_falls() -> None:
    rates = [learning.rise_and_fall(step, 100) for step in range(100)]
    assert rates[4] == max(rates) == 1.0
    assert rates[0] == 0.2 and 0 < rates[-1] < 0.02


def test_smooth_keeps_the_mean() -> None:
    assert learning.smooth([1.0, 3.0, 5.0, 7.0], 2) == [2.0, 6.0]
    assert learning.smooth([1.0, 2.0], 60) == [1.0, 2.0]


def test_styles_differ_in_all_three() -> None:
    looks = [learning.style(n) for n in range(7)]
    for what in ("color", "marker", "linestyle"):
        assert len({str(look[what]) for look in looks}) == 7
