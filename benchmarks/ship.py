"""Copies a trained model from the folder of a run to the assets, with weights in half precision.

python benchmarks/ship.py runs/tasks/fsdd-0 src/regard/assets/spoken-digits
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

COPIED_FILES = ("task.json", "scores.json")


def ship(run: Path, target: Path) -> None:
    """Replace the model in `target`; its README.md, card.json and examples stay as they are."""
    target.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(target / "model", ignore_errors=True)
    shutil.copytree(run / "model", target / "model")
    for path in (target / "model").glob("*.safetensors"):
        half_tensors = {name: x.half() if x.is_floating_point() else x for name, x in load_file(path).items()}
        save_file(half_tensors, path, metadata={"format": "pt"})
    record = json.loads((run / "run.json").read_text("utf8"))
    record["data"] = {split: [Path(path).name for path in paths] for split, paths in record["data"].items()}
    if record["settings"].get("texts"):
        record["settings"]["texts"] = Path(record["settings"]["texts"]).name
    (target / "run.json").write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n", "utf8")
    for name in COPIED_FILES:
        shutil.copy(run / name, target / name)


if __name__ == "__main__":
    ship(Path(sys.argv[1]), Path(sys.argv[2]))
