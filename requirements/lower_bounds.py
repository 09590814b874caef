"""Prints constraints that pin every dependency of a user to the oldest version that pyproject.toml allows.

    python requirements/lower_bounds.py > constraints.txt          (make oldest)
    python requirements/lower_bounds.py torch                      its line alone

torch is left out of all lines: the Makefile installs it first. The oldest of the other packages were built for NumPy 1.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

EXTRAS = ("figures", "cli", "train", "lab", "files")
BOUND = re.compile(r"([\w.-]+)>=([\w.]+)")
OTHERS = ("numpy==1.26.4",)


def lower_bounds(pyproject: str) -> list[str]:
    """`name==version` for the lower bound of each dependency of the extras."""
    project = tomllib.loads(pyproject)["project"]
    needed = {text for extra in EXTRAS for text in project["optional-dependencies"][extra]}
    bounds = {match[1]: match[2] for match in map(BOUND.match, sorted(needed)) if match}
    missing = [text for text in needed if not BOUND.match(text)]
    if missing:
        raise SystemExit(f"without a lower bound: {', '.join(sorted(missing))}")
    return [*OTHERS, *(f"{name}=={version}" for name, version in sorted(bounds.items()))]


def torch_bound(pyproject: str) -> str:
    """`torch==version` for the lower bound of torch."""
    (needed,) = tomllib.loads(pyproject)["project"]["dependencies"]
    bound = BOUND.fullmatch(needed)
    if bound is None or bound[1] != "torch":
        raise SystemExit(f"no lower bound of torch alone: {needed}")
    return f"torch=={bound[2]}"


if __name__ == "__main__":
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text("utf8")
    print(torch_bound(text) if sys.argv[1:] == ["torch"] else "\n".join(lower_bounds(text)))
