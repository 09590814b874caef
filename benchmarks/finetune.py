"""Fine-tunes one checkpoint with Regard and with the Trainer of transformers, on the same data, side by side.

    python benchmarks/finetune.py --model MINILM --data DIR [--device cuda] [--seeds 3] [--only trec]
    python benchmarks/finetune.py … --ours --variants epochs=8 epochs=8,r_drop=1   # other settings beside the defaults

MINILM is the folder of a BERT-like encoder (config.json, *.safetensors, tokenizer), DIR has trec6/train.tsv,
sst2/train.tsv, sst2/dev.tsv and ud_english_ewt/en_ewt-ud-{train,dev}.conllu. Of TREC a stratified tenth of the training
data is held out. Both sides get the same examples, epochs, batch size and precision. The time is from texts in memory
to trained weights (tokenizing included, loading the checkpoint and evaluating not), and the two take turns. On a CPU it
is the time of the processor, so that other processes do not matter. Results are written to results/finetune.json.
"""

from __future__ import annotations

import argparse
import inspect
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.machine import devices, fast_bfloat16, versions
from regard.train.run import RunConfig, RunData, open_run, read_data, train_run
from regard.train.trainer import TrainEvent

RESULTS = Path(__file__).parent / "results" / "finetune.json"
EWT = "ud_english_ewt/en_ewt-ud-{}.conllu"
TASKS: dict[str, dict[str, Any]] = {
    "trec": {"task": "classify", "train": ("trec6/train.tsv",), "epochs": 5, "goal": 95.0},
    "sst2": {"task": "classify", "train": ("sst2/train.tsv",), "dev": ("sst2/dev.tsv",), "epochs": 4, "goal": 90.0},
    "ewt": {"task": "tag", "train": (EWT.format("train"),), "dev": (EWT.format("dev"),), "epochs": 4, "goal": 96.0},
}
BATCH = 32
MAX_LENGTH = 256
TRAINER_RATE = 1e-4


def find(data: Path, name: str) -> Path:
    """A data file, which may be compressed."""
    path = data / name
    return path if path.is_file() else path.with_name(path.name + ".gz")


def make_config(name: str, args: argparse.Namespace, seed: int, changes: dict[str, Any]) -> RunConfig:
    row = TASKS[name]
    settings = {
        "checkpoint": str(args.model),
        "epochs": args.epochs or row["epochs"],
        "batch_size": BATCH,
        "device": args.device,
        "seed": seed,
        "precision": "bf16" if fast_bfloat16(args.device) else "no",
        "evaluate_every": 10**9,  # once, at the end
        "save_every": 10**9,
        "save_minutes": None,
        **({"max_length": MAX_LENGTH} if row["task"] == "classify" else {}),
        **changes,
    }
    files = [[find(args.data, file) for file in row.get(part, ())] for part in ("train", "dev")]
    return RunConfig.from_changes(row["task"], settings, train=files[0], dev=files[1])


def run_regard(config: RunConfig, data: RunData, outputs: Path | None = None) -> tuple[float, float]:
    """(score, seconds); the logits of the validation data are written to `outputs`."""
    ended: list[float] = []

    def watch(event: TrainEvent) -> None:
        if event.name == "evaluating":
            ended.append(read_clock(config))

    with tempfile.TemporaryDirectory() as folder:
        start = read_clock(config)
        task = config.prepare(data.train)
        train_run(task, config.architecture, config.training, data, folder, config.files, watch)
        scores = json.loads((Path(folder) / "scores.json").read_text())
        if outputs is not None:
            opened, model, _ = open_run(folder)
            gold = [example.label for example in data.validation]
            np.savez(outputs, logits=opened.logits(model, data.validation).numpy(), gold=opened.target.tensor(gold))
    return 100 * scores["metrics"]["accuracy"], ended[0] - start


def run_trainer(config: RunConfig, data: RunData, group_by_length: bool) -> tuple[float, float]:
    """(score, seconds) of transformers' Trainer."""
    import transformers
    from transformers import AutoTokenizer, Trainer, TrainingArguments

    tags = config.task.name == "tag"
    labels = sorted({label for example in data.train for label in (example.tags if tags else [example.label])})
    checkpoint = str(config.architecture.checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    kind = "AutoModelForTokenClassification" if tags else "AutoModelForSequenceClassification"
    transformers.set_seed(config.training.seed)
    model = getattr(transformers, kind).from_pretrained(checkpoint, num_labels=len(labels))
    collator = "DataCollatorForTokenClassification" if tags else "DataCollatorWithPadding"
    with tempfile.TemporaryDirectory() as folder:
        given: dict[str, Any] = {
            "output_dir": folder,
            "num_train_epochs": config.training.epochs,
            "per_device_train_batch_size": BATCH,
            "per_device_eval_batch_size": 128,
            "learning_rate": TRAINER_RATE,
            "bf16": config.training.precision == "bf16",
            "use_cpu": config.training.device == "cpu",
            "seed": config.training.seed,
            "save_strategy": "no",
            "eval_strategy": "no",
            "report_to": [],
            "logging_strategy": "no",
            "disable_tqdm": True,
            "dataloader_num_workers": 0,
        }
        known = inspect.signature(TrainingArguments.__init__).parameters  # names differ between versions
        given["warmup_ratio" if "warmup_ratio" in known else "warmup_steps"] = 0.1
        if group_by_length:
            sampling = "train_sampling_strategy" in known
            given["train_sampling_strategy" if sampling else "group_by_length"] = (
                "group_by_length" if sampling else True
            )
        arguments = TrainingArguments(**given)
        start = read_clock(config)
        encode = encode_words if tags else encode_texts
        train = encode(tokenizer, data.train, labels)
        collate = getattr(transformers, collator)(tokenizer)
        trainer = Trainer(model, arguments, collate, train_dataset=train, processing_class=tokenizer)
        trainer.train()
        seconds = read_clock(config) - start
        output = trainer.predict(encode(tokenizer, data.validation, labels))
    gold, predicted = output.label_ids, np.asarray(output.predictions).argmax(-1)
    counted = gold != -100
    total = sum(len(example.tags) for example in data.validation) if tags else len(data.validation)
    return 100 * float((gold[counted] == predicted[counted]).sum()) / total, seconds


def encode_texts(tokenizer: Any, examples: Sequence[Any], labels: list[str]) -> list[dict[str, Any]]:
    """The examples for their classifier."""
    number = {label: n for n, label in enumerate(labels)}
    encoded = tokenizer([example.text for example in examples], truncation=True, max_length=MAX_LENGTH)
    return [
        {**{name: values[n] for name, values in encoded.items()}, "labels": number.get(example.label, -100)}
        for n, example in enumerate(examples)
    ]


def encode_words(tokenizer: Any, examples: Sequence[Any], labels: list[str]) -> list[dict[str, Any]]:
    """The examples for their tagger: the first subword of a word has its tag."""
    number = {label: n for n, label in enumerate(labels)}
    rows = [list(example.words) for example in examples]
    encoded = tokenizer(rows, is_split_into_words=True, truncation=True, max_length=512)
    result = []
    for n, example in enumerate(examples):
        words, tags, before = encoded.word_ids(n), [], None
        for word in words:
            tags.append(-100 if word is None or word == before else number.get(example.tags[word], -100))
            before = word
        result.append({**{name: values[n] for name, values in encoded.items()}, "labels": tags})
    return result


def read_clock(config: RunConfig) -> float:
    """Seconds: of the processor on a CPU, of the wall on a GPU that has finished its work."""
    if config.training.device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """The scores and times of all sides, which take turns over the seeds."""
    rows: dict[str, list[tuple[float, float]]] = {}
    for seed in range(args.seeds):
        config = make_config(name, args, seed, dict(change.split("=", 1) for change in args.set))
        data = read_data(make_config(name, args, 0, {}), lambda faults: None)
        outputs = args.outputs and args.outputs / f"{name}-{seed}.npz"
        sides: dict[str, Any] = {"regard": lambda c=config, d=data, o=outputs: run_regard(c, d, o)}
        for variant in args.variants:
            other = make_config(name, args, seed, dict(change.split("=", 1) for change in variant.split(",")))
            sides[f"regard, {variant}"] = lambda c=other, d=data: run_regard(c, d)
        theirs = not args.ours and seed < args.trainer_seeds
        if theirs and not args.grouped:
            sides["transformers"] = lambda c=config, d=data: run_trainer(c, d, False)
        if theirs:
            sides["transformers, grouped by length"] = lambda c=config, d=data: run_trainer(c, d, True)
        for side, run in sides.items():
            rows.setdefault(side, []).append(run())
            score, seconds = rows[side][-1]
            print(f"{name:6} seed {seed}  {side:32} {score:6.2f}  {seconds:7.1f} s", flush=True)
            if args.partial:
                args.partial.write_text(json.dumps(rows))
    training = config.training
    settings: dict[str, Any] = {"epochs": training.epochs, "batch_size": BATCH, "precision": training.precision}
    rates = {"regard": training.learning_rate, "transformers": TRAINER_RATE}
    settings["settings"] = {side: {"learning_rate": rate} for side, rate in rates.items()}
    result: dict[str, Any] = {"goal": TASKS[name]["goal"], "examples": len(data.train), **settings, "sides": {}}
    result |= {"versions": versions(), "devices": devices()}
    for side, values in rows.items():
        scores, seconds = [round(score, 2) for score, _ in values], [round(time, 2) for _, time in values]
        median = {"score": statistics.median(scores), "median seconds": statistics.median(seconds)}
        result["sides"][side] = {"scores": scores, "seconds": seconds, **median}
    ours = result["sides"]["regard"]["median seconds"]
    theirs = [row["median seconds"] for side, row in result["sides"].items() if side.startswith("transformers")]
    if theirs:
        result["time / best of transformers"] = round(ours / min(theirs), 3)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, help="instead of the epochs of each task")
    parser.add_argument("--only", nargs="*", choices=tuple(TASKS), default=tuple(TASKS))
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="other settings of Regard")
    parser.add_argument("--variants", nargs="*", default=[], metavar="NAME=VALUE,…", help="sides with other settings")
    parser.add_argument("--ours", action="store_true", help="leave transformers out")
    parser.add_argument("--grouped", action="store_true", help="of the two Trainers only the faster, grouped by length")
    parser.add_argument("--trainer-seeds", type=int, default=100, help="seeds of the Trainer, if fewer than --seeds")
    parser.add_argument("--partial", type=Path, help="file for what is measured so far")
    parser.add_argument("--outputs", type=Path, help="folder for the logits of Regard's models (classify)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--threads", type=int, default=1, help="of a CPU")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    results = {name: measure(name, args) for name in args.only}
    before = json.loads(args.out.read_text()) if args.out.is_file() else {}
    tasks = before.get("tasks", {}) | {f"{name} {args.device}": row for name, row in results.items()}
    document = {**before, "model": args.model.resolve().name, "tasks": tasks}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
