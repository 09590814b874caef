"""Runs the hand-made bombs and random requests to the lab, and writes what they took.

    python benchmarks/hostile.py --requests 10000 --out benchmarks/results/hostile.json

The tests of bombs and requests are run as they are, by pytest; its report has the seconds and MiB of each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
BOMBS = {"data": "tests/data/test_limits.py", "models": "tests/models/checkpoint/test_bombs.py"}
REQUESTS = "tests/lab/server/test_fuzz.py"


def run_tests(file: str, **environment: str) -> list[tuple[bool, dict[str, Any]]]:
    """For each test that has recorded something: whether it passed, and its name and what it recorded."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", str(ROOT / file), f"--junitxml={report}"]
        command += ["-o", "junit_family=xunit1"]  # that of recorded properties
        subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, check=False)
        cases = list(ElementTree.parse(report).iter("testcase"))
    recorded = [
        {item.get("name", ""): json.loads(item.get("value", "")) for item in case.iter("property")} for case in cases
    ]
    passed = [case.find("failure") is None and case.find("error") is None for case in cases]
    names = [case.get("name", "").partition("[")[2].rstrip("]") for case in cases]
    return [(ok, {"name": n, **values}) for ok, n, values in zip(passed, names, recorded, strict=True) if values]


def summarize_bombs(cases: list[tuple[bool, dict[str, Any]]]) -> dict[str, Any]:
    """How many there are, how many were refused in time, and the slowest and the largest."""
    values = [value for _, value in cases]
    slowest, largest = (max(values, key=lambda value: value[key]) for key in ("seconds", "mib"))
    return {
        "bombs": len(cases),
        "refused": sum(ok for ok, _ in cases),
        "max_seconds": round(slowest["seconds"], 2),
        "slowest": slowest["name"],
        "max_mib": round(largest["mib"]),
        "largest": largest["name"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="decides the requests")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    bombs = {kind: summarize_bombs(run_tests(file)) for kind, file in BOMBS.items()}
    variables = {"REGARD_FUZZ_REQUESTS": str(given.requests), "REGARD_FUZZ_SEED": str(given.seed)}
    [(passed, recorded)] = run_tests(REQUESTS, **variables)
    command = f"python benchmarks/hostile.py --requests {given.requests} --seed {given.seed}"
    result = {"command": command, "bombs": bombs, "requests": {**recorded["found"], "passed": passed}}
    print(json.dumps(result, indent=1, ensure_ascii=False))
    if given.out is not None:
        given.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf8")
    sys.exit(not passed or any(kind["refused"] < kind["bombs"] for kind in bombs.values()))


if __name__ == "__main__":
    main()
