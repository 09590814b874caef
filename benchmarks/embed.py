"""Encodes the lines of a file with Regard and with sentence-transformers, in turns, and compares time and vectors.

    python benchmarks/embed.py --model MINILM --texts FILE [--device cuda] [--count 4000] [--repeats 5]

MINILM is the folder of a sentence-transformers model. FILE has a text on each line (a .tsv is read as label and text).
The run ends with an error if the vectors differ by more than 1e-5. Results are written to
results/embed.json. On a machine that others use too, trust the seconds of the processor.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from regard.machine import devices, versions
from regard.tasks.pretrained.embedder import Embedder
from regard.tasks.pretrained.pretrained import open_checkpoint

RESULTS = Path(__file__).parent / "results" / "embed.json"


def timed(function: Callable[[], torch.Tensor]) -> tuple[float, float, torch.Tensor]:
    """(seconds, seconds of the processor, result)."""
    start, processor = time.perf_counter(), time.process_time()
    result = function()
    return time.perf_counter() - start, time.process_time() - processor, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    from sentence_transformers import SentenceTransformer, __version__

    lines = args.texts.read_text("utf8").splitlines()
    texts = [line.split("\t")[-1] if args.texts.suffix == ".tsv" else line for line in lines][1 : args.count + 1]
    theirs: Any = SentenceTransformer(str(args.model), device=args.device)
    pretrained = open_checkpoint(args.model)
    pretrained.model.to(args.device)
    ours = Embedder.from_pretrained(pretrained)

    def encode() -> torch.Tensor:
        return torch.from_numpy(theirs.encode(texts, show_progress_bar=False))

    sides: dict[str, Callable[[], torch.Tensor]] = {
        "regard": lambda: ours.embed(texts),
        "sentence-transformers": encode,
    }
    vectors = {name: timed(run)[2] for name, run in sides.items()}  # also the warm-up
    difference = float((vectors["regard"] - vectors["sentence-transformers"]).abs().max())
    if difference > 1e-5:
        raise SystemExit(f"The vectors differ by {difference:.2e}.")
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(args.repeats):
        for name, run in sides.items():
            seconds[name].append(timed(run)[:2])
    medians = {name: statistics.median(wall for wall, _ in values) for name, values in seconds.items()}
    processor = {name: statistics.median(own for _, own in values) for name, values in seconds.items()}
    row = {
        "texts": len(texts),
        "largest difference": difference,
        "median seconds": {name: round(value, 4) for name, value in medians.items()},
        "texts a second": {name: round(len(texts) / value) for name, value in medians.items()},
        "median processor seconds": {name: round(value, 4) for name, value in processor.items()},
        "times less of the processor": round(processor["sentence-transformers"] / processor["regard"], 2),
        "times faster": round(medians["sentence-transformers"] / medians["regard"], 2),
        "threads": torch.get_num_threads(),
    }
    before = json.loads(args.out.read_text()) if args.out.is_file() else {}
    rows = before.get("rows", {}) | {args.device: row}
    packages = {**versions(), "sentence-transformers": __version__}
    document = {"model": args.model.resolve().name, "versions": packages, "devices": devices(), "rows": rows}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
