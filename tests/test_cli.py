"""The commands as they are called: what they print where, and the status they end with."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from regard import machine
from regard.cli import app, has_display

COMMANDS = ("info", "bench", "lab")


def call(*words: str) -> Result:
    return CliRunner().invoke(app, words)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str) -> None:
    done = call(command, "--help")
    assert done.exit_code == 0
    assert f"Example: regard {command}" in done.stdout
    assert "--json" in done.stdout


def test_info_is_one_document() -> None:
    facts = json.loads(call("info", "--json").stdout)
    assert facts["versions"]["torch"]
    assert facts["devices"]
    assert facts["backends"]["reference"] is None


def test_info_says_why_a_backend_does_not_run() -> None:
    text = call("info").stdout
    for backend, why in json.loads(call("info", "--json").stdout)["backends"].items():
        assert f"{backend:16} {why or 'runs here'}" in text


@pytest.mark.parametrize("words", [("nonsense",), ("info", "--nonsense"), ("bench", "--threads", "0")])
def test_wrong_call_ends_with_2(words: tuple[str, ...]) -> None:
    done = call(*words)
    assert done.exit_code == 2
    assert not done.stdout


@pytest.mark.parametrize("command", ["bench", "lab"])
def test_folder_that_is_not_there_ends_with_2(command: str, tmp_path: Path) -> None:
    done = call(command, "--out", str(tmp_path / "nowhere" / "x.html"))
    assert done.exit_code == 2
    assert "nowhere" in done.stderr


def test_failure_is_one_paragraph_and_ends_with_1(tmp_path: Path) -> None:
    done = call("lab", "--no-open", "--out", str(tmp_path), "--json")
    assert done.exit_code == 1
    assert not done.stdout
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1


def test_debug_shows_the_error_itself(tmp_path: Path) -> None:
    done = call("lab", "--no-open", "--out", str(tmp_path), "--debug")
    assert done.exit_code == 1
    assert isinstance(done.exception, Exception)
    assert not done.stderr.startswith("Error: ")


def test_lab_prints_its_page_first(tmp_path: Path) -> None:
    done = call("lab", "--no-open", "--out", str(tmp_path / "page.html"))
    assert done.exit_code == 0
    page = Path(done.stdout.splitlines()[0])
    assert "animal" in page.read_text(encoding="utf-8")


def test_lab_keeps_its_page_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = json.loads(call("lab", "--no-open", "--json").stdout)
    assert Path(found["page"]).is_relative_to(tmp_path)
    assert Path(found["page"]).exists()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems always have a display")
def test_no_display_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert not has_display()


def test_missing_typer_names_the_install_line() -> None:
    code = "import sys; sys.modules['typer'] = None; import regard.cli"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert 'pip install "regard[cli]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_amx_trap_is_told_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "advertises_amx", lambda: True)
    monkeypatch.setattr(machine, "bfloat16_is_fatal", lambda: True)
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16" in call("info").stdout


def test_bfloat16_is_safe_under_the_tests_setting() -> None:
    assert not machine.bfloat16_is_fatal()


@pytest.mark.slow
def test_quick_bench_measures_every_row(tmp_path: Path) -> None:
    out = tmp_path / "cpu.json"
    done = call("bench", "--quick", "--json", "--device", "cpu", "--threads", "1", "--out", str(out))
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == json.loads(out.read_text(encoding="utf-8"))
    assert found["quick"]
    assert len(found["rows"]) == 15
