"""The commands as they are called: what they print where, and the status they end with."""

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import HTTPCookieProcessor, build_opener

import pytest
from typer.testing import CliRunner, Result

from regard import machine
from regard.cli import app

COMMANDS = ("info", "bench", "lab", "look")


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
        assert f"{backend:16} {why or 'available'}" in text


@pytest.mark.parametrize("words", [("nonsense",), ("info", "--nonsense"), ("bench", "--threads", "0")])
def test_wrong_call_ends_with_2(words: tuple[str, ...]) -> None:
    done = call(*words)
    assert done.exit_code == 2
    assert not done.stdout


@pytest.mark.parametrize("words", [("bench", "--out"), ("look", "a", "--save")])
def test_folder_that_is_not_there_ends_with_2(words: tuple[str, ...], tmp_path: Path) -> None:
    done = call(*words, str(tmp_path / "nowhere" / "x.html"))
    assert done.exit_code == 2
    assert "nowhere" in done.stderr


def test_failure_is_report_errors_and_ends_with_1(tmp_path: Path) -> None:
    done = call("lab", "--no-open", "--models", str(tmp_path / "nowhere"), "--json")
    assert done.exit_code == 1
    assert not done.stdout
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1


def test_debug_shows_the_error_itself(tmp_path: Path) -> None:
    done = call("lab", "--no-open", "--models", str(tmp_path / "nowhere"), "--debug")
    assert done.exit_code == 1
    assert isinstance(done.exception, Exception)
    assert not done.stderr.startswith("Error: ")


def test_lab_prints_its_address_first_and_answers() -> None:
    words = [sys.executable, "-m", "regard.cli", "lab", "--no-open"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as lab:
        try:
            address = lab.stdout.readline().strip()  # type: ignore[union-attr]
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{20,}", address)
            with build_opener(HTTPCookieProcessor()).open(address, timeout=20) as page:
                assert "importmap" in page.read().decode()
        finally:
            lab.send_signal(signal.SIGINT)
        assert lab.wait(20) == 0
        assert "Traceback" not in lab.stderr.read()  # type: ignore[union-attr]


def test_lab_tells_its_address_to_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "regard.lab.server.serve.serve", lambda folders, port, opened, tell: tell("http://127.0.0.1:1/")
    )
    assert json.loads(call("lab", "--no-open", "--json").stdout) == {"address": "http://127.0.0.1:1/"}


def test_lab_says_when_its_port_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = call("lab", "--no-open", "--port", str(taken.getsockname()[1]))
    assert done.exit_code == 1
    assert "--port" in done.stderr


def test_look_draws_one_head_in_the_terminal() -> None:
    done = call("look", "猫追狗", "--model", "meanings", "--head", "1")
    assert done.exit_code == 0
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(("猫", "追", "狗"))]
    assert [row[0] for row in rows] == ["猫", "追", "狗"]
    assert all(row[-1] == "1.000" and len(row) == 5 for row in rows)


def test_look_takes_a_model_that_reads_the_text() -> None:
    found = json.loads(call("look", "猫追狗", "--json").stdout)
    assert found["model"] == "tagger-zh" and found["tokens"]["source"] == ["猫", "追", "狗"]


def test_look_tells_of_every_head() -> None:
    done = call("look", "The animal was tired", "--model", "meanings")
    assert done.exit_code == 0 and "entropy" in done.stdout and "The → was" in done.stdout
    found = json.loads(call("look", "The animal was tired", "--model", "meanings", "--json").stdout)
    assert [row["head"] for row in found["attentions"]] == [0, 1]


def test_look_gives_the_weights_to_machines() -> None:
    found = json.loads(call("look", "A打了B", "--model", "meanings", "--head", "0", "--json").stdout)
    assert found["tokens"]["source"] == ["A", "打了", "B"]
    assert all(abs(sum(row) - 1) < 1e-6 for row in found["weights"])


@pytest.mark.parametrize("ending", [".html", ".png", ".svg"])
def test_look_saves_its_picture(ending: str, tmp_path: Path) -> None:
    out = tmp_path / f"x{ending}"
    done = call("look", "猫追狗", "--model", "meanings", "--save", str(out))
    assert done.exit_code == 0 and done.stdout.strip() == str(out)
    assert out.stat().st_size > 5000


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("a", "--save", "x.gif"), 2, ".svg"),
        (("a", "--model", "nothing"), 1, "meanings"),
        (("a", "--model", "meanings", "--layer", "7"), 1, "1 attentions"),
        (("a", "--model", "meanings", "--head", "2"), 1, "heads 0 … 1"),
        ((" ", "--model", "meanings"), 1, "empty"),
    ],
)
def test_look_says_what_it_cannot_show(words: tuple[str, ...], status: int, told: str) -> None:
    done = call("look", *words)
    assert done.exit_code == status and not done.stdout
    assert told in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="other systems always have a display")
def test_no_display_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    from regard.lab.server.serve import has_display

    assert not has_display()


def test_missing_typer_names_the_install_line() -> None:
    code = "import sys; sys.modules['typer'] = None; import regard.cli"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert 'pip install "regard[cli]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_amx_problem_is_reported_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
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


WORDY = """
from regard.terminal import report_errors, typer

def speak() -> None:
    with report_errors(False):
        print("x" * 1_000_000)

typer.run(speak)
"""


def test_a_reader_who_stops_is_no_error() -> None:
    """As `head` does, before a command has printed all that it has to say."""
    told = subprocess.Popen([sys.executable, "-c", WORDY], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert told.stdout is not None and told.stderr is not None
    assert told.stdout.read(3) == "xxx"
    told.stdout.close()
    assert told.stderr.read() == "" and told.wait(30) == 0
