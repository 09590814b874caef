"""Bombs: folders of models that ask for much are refused in time, before memory is filled."""

import gzip
import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import regard as rg
from regard.models.tokenizers.tokenizer import Tokenizer

HUGE = 10**9


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folders of small models, `regard` (without checksums, as a forger would leave them out) and `huggingface`."""
    root = tmp_path_factory.mktemp("bombs")
    model = rg.models.bert(vocabulary=20, dim=8, layers=1, heads=2, hidden=16, positions=8).build()
    model.tokenizer = Tokenizer.train(["the cat sat", "the dog sat"], unit="words", size=20)
    for format in ("regard", "huggingface"):
        model.save(root / format, format)
    config = json.loads((root / "regard" / "regard.json").read_text())
    (root / "regard" / "regard.json").write_text(json.dumps({"model": config["model"]}))
    return root


def safetensors(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def weights(header: bytes, data: bytes = b""):
    return lambda folder: (folder / "model.safetensors").write_bytes(safetensors(header, data))


def tensor(name: str, shape: list[int]) -> bytes:
    return json.dumps({name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()


def many_tensors() -> bytes:
    entry = '"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    return ("{" + ",".join(entry % n for n in range(700_000)) + "}").encode()


def sparse(name: str, size: int, start: bytes):
    """A file that says it is large and takes no space."""

    def write(folder: Path) -> None:
        with (folder / name).open("wb") as file:
            file.write(start)
            file.truncate(size)

    return write


def setting(file: str, *keys: str, value: object):
    """Changes a value in a JSON file; keys lead to it."""

    def write(folder: Path) -> None:
        content = json.loads((folder / file).read_text())
        inner = content
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        (folder / file).write_text(json.dumps(content))

    return write


def deep(file: str):
    return lambda folder: (folder / file).write_text('{"model": ' + "[" * 900 + "]" * 900 + "}")


def t5_with_extra_ids(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "spiece.model").write_bytes(b"\x0a\x05\x0a\x03<p>")
    (folder / "tokenizer_config.json").write_text(json.dumps({"extra_ids": HUGE, "tokenizer_class": "T5Tokenizer"}))


def spiece_of_one_number(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer"}))
    (folder / "spiece.model").write_bytes(b"\xff" * 4_000_000)


def gzipped_line(folder: Path) -> None:
    with gzip.open(folder / "vectors.gz", "wb", 1) as file:
        for _ in range(20):
            file.write(b"1 " * 2**23)


def gzipped_vectors(folder: Path) -> None:
    with gzip.open(folder / "vectors.gz", "wb") as file:
        file.write(b"cat 1\n")
        for _ in range(20):
            file.write(b"\n" * 2**20)


def adapter_of_itself(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    config = {"peft_type": "LORA", "r": HUGE, "base_model_name_or_path": str(folder)}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file({"x.lora_A.weight": torch.ones(1, 1)}, folder / "adapter_model.safetensors")


LOAD, ENCODE, VECTORS = (
    "rg.load(path)",
    "rg.load(path).tokenizer('a' * 5000)",
    "rg.nn.read_vectors(path / 'vectors.gz')",
)
PATTERN = {"type": "Split", "pattern": {"Regex": "(a+)+b"}, "behavior": "Isolated", "invert": False}
DOUBLING = [{"type": "Replace", "pattern": {"String": "t"}, "content": "tt"}] * 40
PIECE = {"Sequence": {"id": "A", "type_id": 0}}
TEMPLATE = {"type": "TemplateProcessing", "single": [PIECE] * 10**5, "pair": [PIECE], "special_tokens": {}}
PRECOMPILED = {"type": "Precompiled", "precompiled_charsmap": ""}
BOMBS = {
    "a header of 2⁶³ bytes": ("regard", sparse("model.safetensors", 2**20, b"\xff" * 7 + b"\x7f{"), LOAD, "is not a"),
    "a header of 90 MB": (
        *("regard", sparse("model.safetensors", 10**8, struct.pack("<Q", 90_000_000) + b"{")),
        *(LOAD, "REGARD_MAX_JSON_BYTES"),
    ),
    "700,000 tensors": ("regard", weights(many_tensors()), LOAD, "REGARD_MAX_JSON_VALUES"),
    "10,000 dimensions": ("huggingface", weights(tensor("a", [1] * 10_000)), LOAD, "REGARD_MAX_TENSOR_DIMS"),
    "a dimension of 2⁶²": ("huggingface", weights(tensor("a", [0, 2**62])), LOAD, "no file can hold"),
    "a number of 100,000 digits": (
        *("huggingface", weights(b'{"a": {"shape": [' + b"9" * 100_000 + b"]}}")),
        *(LOAD, "REGARD_MAX_DIGITS"),
    ),
    "a header of lists in lists": ("regard", weights(b'{"a": ' + b"[" * 500 + b"]" * 500 + b"}"), LOAD, "JSON_DEPTH"),
    "a name of 10 MB": ("huggingface", weights(tensor("a" * 10**7, [0])), LOAD, "REGARD_MAX_NAME_LENGTH"),
    "10⁹ layers": ("huggingface", setting("config.json", "num_hidden_layers", value=HUGE), LOAD, "does not fit"),
    "2,000 layers": ("huggingface", setting("config.json", "num_hidden_layers", value=2000), LOAD, "parameter tensors"),
    "a width of 10¹²": ("huggingface", setting("config.json", "hidden_size", value=10**12), LOAD, "does not fit"),
    "10⁹ layers of ours": (
        "regard",
        setting("regard.json", "model", "stack", "layers", value=HUGE),
        LOAD,
        "stack.layers",
    ),
    "10⁹ heads of ours": ("regard", setting("regard.json", "model", "stack", "heads", value=HUGE), LOAD, "stack.heads"),
    "a configuration of lists in lists": ("regard", deep("regard.json"), LOAD, "JSON_DEPTH"),
    "a mask of a million ~": (
        *("regard", setting("regard.json", "model", "stack", "mask", value="~" * 10**6 + "Causal()")),
        *(LOAD, "is a text of"),
    ),
    "a mask of 15,000 ~": (
        *("regard", setting("regard.json", "model", "stack", "mask", value="~" * 15_000 + "Causal()")),
        *(LOAD, ""),
    ),
    "a configuration of a GB": ("regard", sparse("regard.json", 2**30, b"{"), LOAD, "REGARD_MAX_JSON_BYTES"),
    "a tokenizer of a GB": ("regard", sparse("tokenizer.json", 2**30, b"{"), LOAD, "REGARD_MAX_JSON_BYTES"),
    "a pattern of exponential time": (
        *("regard", setting("tokenizer.json", "pre_tokenizer", value=PATTERN)),
        *(ENCODE, "regular expression"),
    ),
    "a normalizer that panics": (
        *("regard", setting("tokenizer.json", "normalizer", value=PRECOMPILED)),
        *(LOAD, "not a tokenizer"),
    ),
    "a letter doubled 40 times": (
        *("regard", setting("tokenizer.json", "normalizer", value={"type": "Sequence", "normalizers": DOUBLING})),
        *(ENCODE, "REGARD_MAX_TOKENIZER_GROWTH"),
    ),
    "a text of 40 MB before every other": (
        *("regard", setting("tokenizer.json", "normalizer", value={"type": "Prepend", "prepend": "the " * 10**7})),
        *(ENCODE, "REGARD_MAX_TOKENIZER_GROWTH"),
    ),
    "a decoder that doubles 40 times": (
        *("regard", setting("tokenizer.json", "decoder", value={"type": "Sequence", "decoders": DOUBLING})),
        *("rg.load(path).tokenizer.decode([5, 6])", "REGARD_MAX_TOKENIZER_GROWTH"),
    ),
    "a text 100,000 times": (
        *("regard", setting("tokenizer.json", "post_processor", value=TEMPLATE)),
        *(ENCODE, "REGARD_MAX_TOKENIZER_GROWTH"),
    ),
    "a negative number of heads": (
        *("huggingface", setting("config.json", "num_attention_heads", value=-1)),
        *(LOAD, "must not be negative"),
    ),
    "10⁹ extra tokens": ("regard", t5_with_extra_ids, LOAD, "REGARD_MAX_EXTRA_TOKENS"),
    "a number of 4 MB in spiece.model": ("regard", spiece_of_one_number, LOAD, "64 bits"),
    "word vectors in one line": ("regard", gzipped_line, VECTORS, "REGARD_MAX_LINE_BYTES"),
    "word vectors of nothing": ("regard", gzipped_vectors, VECTORS, "REGARD_MAX_EXPANSION"),
    "a text for a number": (
        *("huggingface", setting("config.json", "layer_norm_eps", value="x")),
        *(LOAD, "is 'x'; it must be a number"),
    ),
    "an adapter of itself": ("regard", adapter_of_itself, "open_checkpoint(path)", "is an adapter too"),
}

SCRIPT = r"""
import json, re, sys, time
from pathlib import Path
import regard as rg, regard.nn, tokenizers, safetensors.torch
from regard.tasks.pretrained.pretrained import open_checkpoint
rg.load(sys.argv[1]), rg.load(sys.argv[2])


def peak():  # the most memory since the last reset, in KiB
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])


for line in sys.stdin:
    path, call = json.loads(line)
    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory counts from here
    path, before, start = Path(path), peak(), time.process_time()
    try:
        eval(call)
        message = "it was read"
    except rg.RegardError as error:
        message = "refused: " + str(error)
    except BaseException as error:
        message = "foreign: " + repr(error)
    grown = peak() - before
    print(json.dumps([message, time.process_time() - start, grown / 1024]), flush=True)
"""


@pytest.fixture(scope="module")
def loader(models: Path):
    """A process that loads models and says what came of it, in how much time and memory."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(models / "regard"), str(models / "huggingface")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )

    def load(path: Path, call: str) -> list:
        process.stdin.write(json.dumps([str(path), call]) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield load
    process.stdin.close()
    process.wait(30)


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused(models: Path, tmp_path: Path, loader, record_property, name: str) -> None:
    format, make, call, words = BOMBS[name]
    folder = shutil.copytree(models / format, tmp_path / "model")
    make(folder)
    message, seconds, mib = loader(folder, call)
    record_property("seconds", seconds), record_property("mib", mib)  # for benchmarks/hostile.py
    assert message.startswith("refused: ") and words in message, message[:500]
    assert seconds < 5 and mib < 500, (seconds, mib)
