"""Prints constraints that pin every dependency of a user to the oldest version that pyproject.toml allows.

    python requirements/lower_bounds.py > constraints.txt          (make oldest)

torch is left out: the Makefile installs it first. The oldest of the other packages were built for NumPy 1.
"""

from __future__ import annotations

import re
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


if __name__ == "__main__":
    print("\n".join(lower_bounds((Path(__file__).parents[1] / "pyproject.toml").read_text("utf8"))))
