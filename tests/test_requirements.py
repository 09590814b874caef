"""The locked versions have hashes and name no host; every dependency of a user has a lower bound."""

import importlib.util
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
LINE = re.compile(r"[a-z0-9-]+==[\w.+!]+( --hash=sha256:[0-9a-f]{64})+")


def load_script(name: str):
    spec = importlib.util.spec_from_file_location(f"requirements_{name}", ROOT / "requirements" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_locked_package_has_a_hash_and_no_host() -> None:
    text = (ROOT / "requirements" / "development.txt").read_text("utf8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) > 100 and all(LINE.fullmatch(line) for line in lines)
    assert "://" not in text and not re.search(r"^(torch|regard)==", text, re.MULTILINE)


def test_lower_bounds_are_those_of_the_project() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf8")
    bounds = dict(line.split("==") for line in load_script("lower_bounds").lower_bounds(text))
    train = tomllib.loads(text)["project"]["optional-dependencies"]["train"]
    assert all(f"{name}>={bounds[name]}" in train for name in ("safetensors", "tokenizers", "accelerate", "typer"))
    assert "torch" not in bounds
    (needed,) = tomllib.loads(text)["project"]["dependencies"]
    assert load_script("lower_bounds").torch_bound(text).replace("==", ">=") == needed


def test_a_report_of_pip_becomes_lines() -> None:
    def package(name: str, digest: str) -> dict:
        return {
            "metadata": {"name": name, "version": "1.0"},
            "download_info": {"archive_info": {"hashes": {"sha256": digest}}},
        }

    report = {"install": [package("Ty_per", "a" * 64), package("torch", "b" * 64), package("regard", "c" * 64)]}
    lines = load_script("lock").locked(report)
    assert list(lines) == ["ty-per"] and LINE.fullmatch(lines["ty-per"])
