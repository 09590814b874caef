"""Folders of models of every form that is read, as files, and the calls that open them."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import safetensors.torch
import torch
from mutations import mutate, mutate_file
from samples import Family

import regard as rg
from regard.models.checkpoint.adapter import save_adapter
from regard.models.tokenizers.tokenizer import Tokenizer
from regard.nn import read_vectors
from regard.nn.lora import add_lora
from regard.tasks.pretrained.embedder import Embedder
from regard.tasks.pretrained.pretrained import open_checkpoint
from regard.train.commands import read_config

SAVED_RUNS = Path(__file__).parents[1] / "saved_runs"
TEXTS = ["the cat sat", "the dog sat on the mat", "a cat"]
POOLING = {
    "modules.json": json.dumps(
        [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
        ]
    ).encode(),
    "1_Pooling/config.json": b'{"word_embedding_dimension": 8, "pooling_mode_mean_tokens": true}',
    "sentence_bert_config.json": b'{"max_seq_length": 6, "do_lower_case": false}',
}
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
            container[key] = copy.deepcopy(rng.choice(VALUES))
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


def load_weights(folder: Path) -> Opened:
    """A model of the other families, without a tokenizer."""
    return Opened((rg.load(folder),))


def open_adapter(folder: Path) -> Opened:
    """The checkpoint `base` with the adapter beside it; the path in the adapter's configuration is relative."""
    config = folder / "adapter" / "adapter_config.json"
    config.write_bytes(config.read_bytes().replace(b"BASE", str(folder / "base").encode()))
    return Opened((open_checkpoint(folder / "adapter"),))


def embed(folder: Path) -> Opened:
    return Opened((Embedder.from_pretrained(open_checkpoint(folder)).embed(TEXTS),))


def open_predictor(folder: Path) -> Opened:
    return Opened((rg.open(folder),))


def family(files: dict[str, bytes], *calls: Callable[[Path], Any], separate: bool = False) -> Family:
    return Family(files, tuple(files), calls, mutate_model_file, separate)


def architectures() -> dict[str, bytes]:
    """Tiny checkpoints of every architecture that is written in Hugging Face's form, a folder for each."""
    m, text = rg.models, {"vocabulary": 30, "dim": 8, "layers": 1, "heads": 2, "hidden": 16}
    llama = {**text, "kv_heads": 1, "head_dim": 4}
    tower = {"layers": 1, "dim": 8, "heads": 2, "hidden": 16}
    images = {"layers": 1, "dim": 8, "heads": 2, "hidden": 16, "size": 8, "patch": 4}
    ends = {"start": 2, "padding": 1}
    configs = [
        *(m.albert(**text, inner=4, positions=8), m.electra(**text, inner=4, positions=8), m.opt(**text, positions=8)),
        *(m.bert(**text, positions=8), m.roberta(**text, positions=8), m.distilbert(**text, positions=8)),
        *(m.modernbert(**text, window=4, padding=0), m.deberta_v3(**text, buckets=4, max_distance=8)),
        *(m.bigbird(**text, block=4, random=1, positions=16), m.longformer(**text, window=4, positions=16)),
        *(m.gpt2(vocabulary=30, dim=8, layers=1, heads=2, positions=8), m.gpt_neox(**text, position=rg.Rotary(dim=2))),
        *(getattr(m, name)(**llama) for name in ("llama", "mistral", "qwen2", "qwen3", "olmo2", "phi3")),
        *(m.gemma2(**llama), m.gemma3(**llama), m.gpt_oss(**llama, experts=2, active=1)),
        *(m.bart(**text, positions=8, **ends), m.mbart(**text, positions=8, **ends), m.marian(**text, **ends)),
        *(m.pegasus(**text, **ends), m.t5(**text, head_dim=4, buckets=4), m.t5_encoder(**text, head_dim=4, buckets=4)),
        *(m.vit(**images, classes=3), m.dinov2(**images)),
        m.swin(dim=4, depths=(1, 1), heads=(1, 2), window=2, size=16),
        m.clip(text=tower, image=tower, vocabulary=30, positions=8, end=2, size=8, patch=4, shared=4),
        m.siglip(text=tower, image=tower, vocabulary=30, positions=8, size=8, patch=4),
        m.siglip2(text=tower, image=tower, vocabulary=30, positions=8, patches=4, patch=4),
        m.whisper(**text, bins=4, sound_positions=8, positions=8, **ends),
        m.moonshine(**text),
        m.wav2vec2(**text, channels=(4, 4), kernels=(4, 2), strides=(2, 2), position_kernel=4, position_groups=2),
    ]
    files: dict[str, bytes] = {}
    for config in configs:
        with tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(0)
            config.build().save(folder, "huggingface")
            own = files_of(Path(folder))
        kind = json.loads(own["config.json"])["model_type"]
        name = kind if f"{kind}/config.json" not in files else f"{kind}-2"
        files |= {f"{name}/{file}": data for file, data in own.items()}
    return files


def adapter(base: dict[str, bytes]) -> dict[str, bytes]:
    """A checkpoint in `base` and a LoRA for it in `adapter`."""
    with tempfile.TemporaryDirectory() as root:
        for name, data in base.items():
            (Path(root) / name).write_bytes(data)
        model = rg.load(root)
        add_lora(model, 2, 4.0, "qv")
        save_adapter(model, Path(root) / "adapter", "BASE")
        own = files_of(Path(root) / "adapter")
    return {f"base/{name}": data for name, data in base.items()} | {f"adapter/{name}": x for name, x in own.items()}


def shards(files: dict[str, bytes]) -> dict[str, bytes]:
    """A checkpoint with its weights in two files and their index."""
    tensors = safetensors.torch.load(files["model.safetensors"])
    names = sorted(tensors)
    parts = {f"model-0000{n}-of-00002.safetensors": names[n - 1 :: 2] for n in (1, 2)}
    index = {"metadata": {"total_size": 1}, "weight_map": {name: file for file, own in parts.items() for name in own}}
    weights = {file: safetensors.torch.save({n: tensors[n] for n in own}) for file, own in parts.items()}
    others = {name: data for name, data in files.items() if name != "model.safetensors"}
    return others | weights | {"model.safetensors.index.json": json.dumps(index).encode()}


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
        "model folder, shards": family(shards(huggingface), load_weights),
        "model folder, every architecture": family(architectures(), load_weights, separate=True),
        "adapter": family(adapter(huggingface), open_adapter),
        "sentence embedder": family(huggingface | POOLING, embed),
        **{f"run folder, {name}": family(files, open_predictor) for name, files in runs.items()},
        "word vectors": family(
            {"a.vec": b"2 2\ncat 1 2\ndog 3 4\n"}, lambda folder: Opened((read_vectors(folder / "a.vec"),))
        ),
        "word vectors, binary": family({"a.bin": binary}, lambda folder: Opened((read_vectors(folder / "a.bin"),))),
        "settings": family(
            {"a.json": b'{"dim": 16, "layers": 2, "seed": 3}', "a.toml": b'dim = 16\nmodel = "transformer"\n'},
            lambda folder: Opened((read_config(folder / "a.json"), read_config(folder / "a.toml"))),
        ),
    }
