"""Prints the packages of installation reports of pip with versions and hashes: `python lock.py REPORT…` (make lock).

Regard and torch are left out: the Makefile installs torch first, and which file of it fits depends on the machine.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

LEFT_OUT = re.compile(r"regard|torch|nvidia-.*|cuda-.*")
HEADER = "# For Python 3.11 on Linux (x86-64), written by `make lock`. Elsewhere the ranges of pyproject.toml decide."


def locked(report: dict) -> dict[str, str]:
    """`name==version --hash=…` of each package of a report, by name."""
    lines = {}
    for item in report["install"]:
        name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
        if not LEFT_OUT.fullmatch(name):
            digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
            lines[name] = f"{name}=={item['metadata']['version']} --hash=sha256:{digest}"
    return lines


if __name__ == "__main__":
    found: dict[str, str] = {}
    for path in sys.argv[1:]:
        found |= locked(json.loads(Path(path).read_text("utf8")))
    print("\n".join([HEADER, *(found[name] for name in sorted(found))]))
