"""Folders of models of every form that is read, as files, and the calls that open them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from mutations import mutate, mutate_file
from samples import Family

import regard as rg
from regard.models.tokenizers.tokenizer import Tokenizer
from regard.nn import read_vectors
from regard.train.commands import read_config
from regard.train.run import open_run

SAVED_RUNS = Path(__file__).parents[1] / "saved_runs"
TEXTS = ["the cat sat", "the dog sat on the mat", "a cat"]
VALUES = (
    *(
        0,
        1,
        -1,
        2,
        3,
        7,
        64,
        10**6,
        10**9,
        2**31,
        2**63,
        -(2**63),
        10**30,
        0.5,
        -0.0,
        1e308,
        float("nan"),
        float("inf"),
    ),
    *("", "x", "a" * 3000, "[UNK]", "Causal()", "Window(9)", "~" * 300, "../..", "\0", "词", None, True, False),
    *([], {}, [[]], [None], {"type": "x"}, {"content": 3}, [1, 2, 3], {"0": "a"}),
)


@dataclass(frozen=True)
class Opened:
    """What was opened, in the form that the readers of data answer in."""

    examples: tuple[Any, ...]
    faults: tuple[Any, ...] = ()


def mutate_model_file(name: str, data: bytes, rng: Random) -> bytes:
    """A mutated file: mostly a value of its JSON, or of its safetensors header with the right length before it."""
    if name.endswith(".json") and rng.random() < 0.7:
        return mutate_json(data, rng)
    if name.endswith(".safetensors") and rng.random() < 0.7:
        length = int.from_bytes(data[:8], "little")
        change = mutate_json if rng.random() < 0.7 else mutate
        header = change(data[8 : 8 + length], rng)
        return len(header).to_bytes(8, "little") + header + data[8 + length :]
    return mutate_file(name, data, rng)


def mutate_json(data: bytes, rng: Random) -> bytes:
    """JSON with one to three values that are others, gone, or moved here from another place."""
    content = json.loads(data)
    for _ in range(rng.randint(1, 3)):
        places = list(containers(content))
        if not places:
            break
        container, key = rng.choice(places)
        if key not in container and not isinstance(container, list):
            continue  # an earlier mutation took it
        if rng.random() < 0.15:
            del container[key]
        elif rng.random() < 0.15:
            other, place = rng.choice(places)
            container[key] = json.loads(json.dumps(other[place])) if place in other or isinstance(other, list) else 0
        else:
            container[key] = rng.choice(VALUES)
    return json.dumps(content).encode()


def containers(value: Any) -> Any:
    """Every place in a JSON value: a list or object, and an index or key."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from containers(value[key])


def files_of(folder: Path, without: tuple[str, ...] = ()) -> dict[str, bytes]:
    """The files of a folder by their paths in it."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and "checkpoints" not in path.parts]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.name not in without}


def saved(config: Any, format: str, unit: str = "words") -> dict[str, bytes]:
    """The files of a new model, without checksums: a forger would leave them out."""
    torch.manual_seed(0)
    model = config.build()
    model.tokenizer = Tokenizer.train(TEXTS, unit=unit, size=300)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        model.save(folder, format)
        files = files_of(Path(folder))
    if "regard.json" in files:
        files["regard.json"] = json.dumps({"model": json.loads(files["regard.json"])["model"]}).encode()
    return files


def with_old_vocabulary(files: dict[str, bytes], **vocabulary: bytes) -> dict[str, bytes]:
    """The files with a vocabulary in the older form."""
    return {name: data for name, data in files.items() if name != "tokenizer.json"} | vocabulary


def load(folder: Path) -> Opened:
    model = rg.load(folder)
    if model.tokenizer is not None:
        model.tokenizer.decode(model.tokenizer(TEXTS).tokens)
    return Opened((model,))


def open_and_predict(folder: Path) -> Opened:
    open_run(folder)
    return Opened((rg.open(folder),))


def family(files: dict[str, bytes], *calls: Callable[[Path], Any]) -> Family:
    return Family(
        files,
        tuple(name for name in files if Path(name).suffix != ".txt" or name == "vocab.txt"),
        calls,
        mutate_model_file,
    )


@cache
def model_families() -> dict[str, Family]:
    """Folders of models, runs, word vectors and files of settings."""
    bert = rg.models.bert(vocabulary=300, dim=8, layers=1, heads=2, hidden=16, positions=8)
    gpt2 = rg.models.gpt2(vocabulary=300, dim=8, layers=1, heads=2, positions=8)
    pieces = b"".join(
        b"\x0a" + bytes([len(p) + 7]) + b"\x0a" + bytes([len(p)]) + p + b"\x15" + b"\0\0\x80\xbf"
        for p in (b"a", b"cat", b"the")
    )
    spiece = b"\x0a\x0e\x0a\x05<unk>\x15\0\0\0\0\x18\x02" + pieces
    huggingface = saved(bert, "huggingface")
    t5 = with_old_vocabulary(huggingface) | {
        "spiece.model": spiece,
        "tokenizer_config.json": b'{"tokenizer_class": "T5Tokenizer", "extra_ids": 3}',
    }
    vocabulary = json.dumps(
        {piece: n for n, piece in enumerate(["<|endoftext|>", "a", "b", "c", "t", "h", "e", "th"])}
    ).encode()
    byte_level = with_old_vocabulary(saved(gpt2, "huggingface", "bpe")) | {
        "vocab.json": vocabulary,
        "merges.txt": b"#version: 0.2\nt h\n",
    }
    wordpiece = with_old_vocabulary(huggingface) | {
        "vocab.txt": "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat"]).encode()
    }
    runs = {
        name: files_of(SAVED_RUNS / name, ("expected.json", "log.jsonl", "hypotheses.txt", "scores.json"))
        for name in ("tagger", "classifier", "translator", "language-model", "images")
    }
    binary = b"2 2\ncat " + b"\0\0\x80\x3f" * 2 + b"\ndog " + b"\0\0\0\x40" * 2 + b"\n"
    return {
        "model folder": family(saved(bert, "regard"), load),
        "model folder, Hugging Face": family(huggingface, load),
        "model folder, vocab.txt": family(wordpiece, load),
        "model folder, merges.txt": family(byte_level, load),
        "model folder, spiece.model": family(t5, load),
        **{f"run folder, {name}": family(files, open_and_predict) for name, files in runs.items()},
        "word vectors": family(
            {"a.vec": b"2 2\ncat 1 2\ndog 3 4\n"}, lambda folder: Opened((read_vectors(folder / "a.vec"),))
        ),
        "word vectors, binary": family({"a.bin": binary}, lambda folder: Opened((read_vectors(folder / "a.bin"),))),
        "settings": family(
            {"a.json": b'{"dim": 16, "layers": 2, "seed": 3}', "a.toml": b'dim = 16\nmodel = "transformer"\n'},
            lambda folder: Opened((read_config(folder / "a.json"), read_config(folder / "a.toml"))),
        ),
    }
