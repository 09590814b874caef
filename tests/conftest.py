"""What every test stands on: threads, seeds, and a plain word for what this machine lacks."""

import os

# Some virtual machines advertise AMX but hide its tile sizes: a bfloat16 matrix product then dies with an illegal
# instruction. oneDNN reads this once, when torch is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
# Workers share the cores. OpenMP counts threads anew in every thread and process, so that torch.set_num_threads would
# not reach the lab's server or a command that a test starts.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import shutil
import subprocess

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton: kernels then run on the CPU

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find_browser() -> str | None:
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def find_chinese_font() -> str | None:
    if not shutil.which("fc-list"):
        return None
    fonts = subprocess.run(["fc-list", ":lang=zh", "family"], capture_output=True, text=True, check=False).stdout
    return fonts.partition("\n")[0] or None


def lacking() -> list[str]:
    lines = []
    if not torch.cuda.is_available():
        lines.append("no CUDA device: tests marked gpu are skipped")
    if not find_browser():
        lines.append("no Chromium: tests of the lab's page in a browser are skipped")
    if not find_chinese_font():
        lines.append("no Chinese font: tests of how Chinese is drawn are skipped")
    return lines


def pytest_report_header() -> list[str]:
    return [f"torch {torch.__version__}, threads {torch.get_num_threads()}"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in lacking():
        terminalreporter.write_line(line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def set_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium."""
    path = find_browser()
    if path is None:
        pytest.skip("needs Chromium")
    return path


@pytest.fixture(scope="session")
def chinese_font() -> str:
    """The name of a font that has Chinese characters."""
    name = find_chinese_font()
    if name is None:
        pytest.skip("needs a Chinese font, such as fonts-wqy-zenhei")
    return name
