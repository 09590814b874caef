"""Checkpoint folders: what is written comes back, and what is malformed is refused by name."""

import json
import pickle
import random
import struct
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from regard.errors import BadInput, Missing
from regard.models.checkpoint.folder import open_folder, write_folder

TENSORS = {
    "embed.weight": torch.randn(7, 3),
    "half": torch.randn(5).half(),
    "brain": torch.randn(2, 2, 2).bfloat16(),
    "numbers": torch.arange(11),
    "flags": torch.tensor([True, False]),
    "scalar": torch.tensor(3.5, dtype=torch.float64),
    "nothing": torch.empty(0, 4),
}


def write(path: Path, tensors=TENSORS, **options) -> Path:
    write_folder(path, {"model_type": "bert", "名": "注意"}, tensors, **({"format": "huggingface"} | options))
    return path


def refusal(path: Path) -> str:
    """The message by which a folder is refused."""
    with pytest.raises(BadInput) as caught:
        open_folder(path).weights()
    return str(caught.value)


def refuse_file(path: Path, content: bytes) -> str:
    """The message by which a folder with these weights is refused."""
    write(path)
    (path / "model.safetensors").write_bytes(content)
    message = refusal(path)
    assert "model.safetensors" in message
    return message


def safetensors(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def describe_tensor(begin: int, end: int, shape=(1,), dtype="F32") -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.parametrize("shard_bytes", [5_000_000_000, 100, 1])
@pytest.mark.parametrize(("format", "config"), [("regard", "regard.json"), ("huggingface", "config.json")])
def test_what_is_written_comes_back(tmp_path, format, config, shard_bytes):
    folder = open_folder(write(tmp_path, format=format, shard_bytes=shard_bytes))
    assert (folder.format, folder.config, folder.generation) == (format, {"model_type": "bert", "名": "注意"}, {})
    assert (tmp_path / config).is_file()
    weights = folder.weights()
    assert sorted(weights.names()) == sorted(TENSORS)
    for name, tensor in TENSORS.items():
        assert (weights.shape(name), weights.dtype(name)) == (tuple(tensor.shape), tensor.dtype)
        torch.testing.assert_close(weights.tensor(name), tensor, rtol=0, atol=0)
    assert weights.tensor("half", torch.float64).dtype == torch.float64
    assert not list(tmp_path.glob("*.tmp")) and not list(tmp_path.glob(".*"))


def test_shards_are_those_of_other_programs(tmp_path):
    write(tmp_path, shard_bytes=100)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in TENSORS.values())
    assert index["weight_map"].keys() == TENSORS.keys()
    for name, shard in index["weight_map"].items():
        torch.testing.assert_close(load_file(tmp_path / shard)[name], TENSORS[name], rtol=0, atol=0)


def test_transformers_reads_what_is_written_and_the_other_way_round(tmp_path):
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=13)
    model = BertModel(config)
    write_folder(tmp_path / "ours", config.to_dict(), model.state_dict(), format="huggingface", shard_bytes=1000)
    loaded = BertModel.from_pretrained(tmp_path / "ours").state_dict()
    model.save_pretrained(tmp_path / "theirs", max_shard_size=1000)
    weights = open_folder(tmp_path / "theirs").weights()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded[name], tensor)
        assert torch.equal(weights.tensor(name), tensor)


def test_tensors_that_share_memory_are_written_each(tmp_path):
    whole = torch.randn(6, 4)
    tied = nn.Parameter(whole)
    tensors = {"a": tied, "b": tied, "rows": whole[2:4], "turned": whole.T, "spread": whole[:1].expand(3, 4)}
    weights = open_folder(write(tmp_path, tensors)).weights()
    for name, tensor in tensors.items():
        assert torch.equal(weights.tensor(name), tensor.detach())


def test_a_second_write_leaves_nothing_of_the_first_but_other_files(tmp_path):
    write(tmp_path, shard_bytes=1, format="regard")
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "extra.safetensors").write_bytes(b"mine")
    write(tmp_path, {"only": torch.ones(2)})
    left = sorted(file.name for file in tmp_path.iterdir())
    assert left == ["config.json", "extra.safetensors", "model.safetensors", "tokenizer.json"]
    write(tmp_path, {"a": torch.ones(2), "b": torch.ones(2)}, shard_bytes=1)
    assert not (tmp_path / "model.safetensors").exists()
    assert sorted(open_folder(tmp_path).weights().names()) == ["a", "b"]


def test_a_write_that_fails_leaves_the_old_folder(tmp_path, monkeypatch):
    write(tmp_path, {"old": torch.ones(2)})
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="no space"):
        write(tmp_path, {"new": torch.ones(3)})
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("config", "tensors", "options", "message"),
    [
        ({}, {"a": torch.ones(1)}, {"format": "pickle"}, "'pickle', wanted one of 'regard', 'huggingface'"),
        ({}, {"a": torch.ones(1)}, {"format": "regard", "shard_bytes": 0}, "shard_bytes is 0"),
        ({}, {"a": torch.ones(1, device="meta")}, {"format": "regard"}, "'a' .meta"),
        ({}, {"a": torch.ones(2).to_sparse()}, {"format": "regard"}, "sparse"),
        ({}, {"a": [1.0]}, {"format": "regard"}, "'a' .list. cannot be written"),
        ({}, {"__metadata__": torch.ones(1)}, {"format": "regard"}, "__metadata__"),
        ({"x": torch.ones(1)}, {"a": torch.ones(1)}, {"format": "regard"}, "cannot be written as JSON"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is(tmp_path, config, tensors, options, message):
    with pytest.raises(BadInput, match=message):
        write_folder(tmp_path / "new", config, tensors, **options)
    assert not (tmp_path / "new").exists()


def test_a_file_in_the_way_of_the_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="is a file"):
        write(tmp_path / "file")


def test_generation_settings_are_read(tmp_path):
    (write(tmp_path) / "generation_config.json").write_text('{"max_length": 7}')
    assert open_folder(str(tmp_path)).generation == {"max_length": 7}


def test_one_file_of_another_name(tmp_path):
    (write(tmp_path) / "model.safetensors").rename(tmp_path / "weights.safetensors")
    assert sorted(open_folder(tmp_path).weights().names()) == sorted(TENSORS)


def test_a_tensor_that_is_not_there_names_its_neighbours(tmp_path):
    weights = open_folder(write(tmp_path)).weights()
    with pytest.raises(BadInput, match=r"no tensor 'embed\.weigth'.*embed\.weight"):
        weights.tensor("embed.weigth")


def test_folders_that_are_none(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name, message in [("absent", "does not exist"), ("file", "is a file"), ("empty", "neither config.json nor")]:
        with pytest.raises(BadInput, match=message) as caught:
            open_folder(tmp_path / name)
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1,\n "b": }', "line 2, column 7"),
        (b"[1, 2]", "JSON list, wanted an object"),
        (b"\xff\xfe\xfa", "is not JSON"),
        (b"", "line 1, column 1"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "characters in a number"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
    ],
)
def test_configurations_that_are_not_json(tmp_path, content, message):
    (write(tmp_path) / "config.json").write_bytes(content)
    with pytest.raises(BadInput, match=message) as caught:
        open_folder(tmp_path)
    assert "config.json" in str(caught.value)


def test_a_folder_without_weights(tmp_path):
    (write(tmp_path) / "model.safetensors").unlink()
    assert "has no weights" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "last.ckpt"])
def test_pickled_weights_are_refused_with_the_line_that_converts_them(tmp_path, name):
    torch.save({"a": torch.ones(2)}, tmp_path / name)
    (tmp_path / "config.json").write_text("{}")
    message = refusal(tmp_path)
    assert name in message
    line = message.partition('python -c "')[2].rpartition('"')[0]
    code = line.replace(name, str(tmp_path / name)).replace(
        "'model.safetensors'", f"'{tmp_path / 'model.safetensors'}'"
    )
    exec(code)
    assert torch.equal(open_folder(tmp_path).weights().tensor("a"), torch.ones(2))


def test_pickles_under_another_name(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "zip")
    torch.save({"a": torch.ones(2)}, tmp_path / "old", _use_new_zipfile_serialization=False)
    plain = [pickle.dumps({"a": 1}, protocol=protocol) for protocol in (2, 3, 4, 5)]
    for content in [(tmp_path / "zip").read_bytes(), (tmp_path / "old").read_bytes(), *plain]:
        assert "is a pickle renamed" in refuse_file(tmp_path / "folder", content)


def test_a_header_whose_length_looks_like_a_pickle_is_read(tmp_path):
    length = 0x0280
    text = json.dumps({"a": describe_tensor(0, 4)}).encode().ljust(length)
    (write(tmp_path) / "model.safetensors").write_bytes(safetensors(text, bytes(4)))
    assert open_folder(tmp_path).weights().tensor("a").item() == 0


def test_a_pointer_instead_of_weights(tmp_path):
    assert "Git LFS pointer" in refuse_file(tmp_path, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cut off inside its header"),
        (b"\x00\x00", "cut off inside its header"),
        (struct.pack("<Q", 50) + b'{"a"', "cut off inside its header"),
        (struct.pack("<Q", 2**40) + b"{}", "not a safetensors file"),
        (b"<!DOCTYPE html><html>", "not a safetensors file"),
        (safetensors(b"[]"), "not a safetensors file"),
        (safetensors(b'{"a": }'), "not JSON"),
        (safetensors(b'{"a": "\xff"}'), "not JSON"),
        (safetensors({"a": 3}), "describes the tensor 'a' as 3"),
        (safetensors({"a": {"dtype": "F32", "shape": [1]}}), "describes the tensor 'a'"),
        (safetensors({"a": describe_tensor(0, 4, shape=(1.0,))}, bytes(4)), "describes the tensor 'a'"),
        (safetensors({"a": describe_tensor(0, 4, shape=(True,))}, bytes(4)), "describes the tensor 'a'"),
        (safetensors({"a": describe_tensor(0, 4, shape=(-1,))}, bytes(4)), "describes the tensor 'a'"),
        (safetensors({"a": describe_tensor(0, 4, dtype="F128")}, bytes(4)), "dtype F128"),
        (safetensors({"a": describe_tensor(0, 4, shape=(2,))}, bytes(4)), "4 bytes, wanted 8"),
        (safetensors({"a": describe_tensor(4, 0)}, bytes(4)), "-4 bytes, wanted 4"),
        (
            safetensors({"a": describe_tensor(0, 4), "b": describe_tensor(2, 6)}, bytes(6)),
            "'b' at byte 2, which overlaps",
        ),
        (safetensors({"a": describe_tensor(0, 4), "b": describe_tensor(0, 4)}, bytes(4)), "overlaps"),
        (safetensors({"a": describe_tensor(0, 4), "b": describe_tensor(8, 12)}, bytes(12)), "leaves a hole"),
        (safetensors({"a": describe_tensor(0, 4)}, bytes(3)), "is cut off: its tensors need 4 bytes and it has 3"),
        (safetensors({"a": describe_tensor(0, 4)}, bytes(5)), "1 bytes after its last tensor"),
    ],
)
def test_malformed_weights_are_refused(tmp_path, content, message):
    assert message in refuse_file(tmp_path, content)


def test_every_cut_of_a_file_is_refused(tmp_path):
    content = (write(tmp_path) / "model.safetensors").read_bytes()
    for size in range(len(content)):
        (tmp_path / "model.safetensors").write_bytes(content[:size])
        assert "cut off" in refusal(tmp_path)


def test_a_changed_header_is_refused_or_read_but_never_breaks(tmp_path):
    whole = (write(tmp_path) / "model.safetensors").read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    draw = random.Random(0)
    refused = 0
    for _ in range(300):
        content = bytearray(whole)
        content[draw.randrange(header)] = draw.randrange(256)
        (tmp_path / "model.safetensors").write_bytes(bytes(content))
        try:
            weights = open_folder(tmp_path).weights()
            [weights.tensor(name) for name in weights.names()]
        except BadInput:
            refused += 1
    assert 100 < refused < 300


def change_index(path: Path, **places: str) -> None:
    file = path / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    index["weight_map"] |= places
    file.write_text(json.dumps(index))


@pytest.mark.parametrize(
    "place", ["../secret.safetensors", "/etc/secret.safetensors", "a/../../b.safetensors", "..\\b.safetensors",
              "C:b.safetensors", "model.bin", ""]
)  # fmt: skip
def test_an_index_may_not_point_elsewhere(tmp_path, place):
    save_file({"a": torch.ones(1)}, tmp_path / "secret.safetensors")
    write(tmp_path / "folder", shard_bytes=1)
    change_index(tmp_path / "folder", a=place)
    assert "inside its folder" in refusal(tmp_path / "folder")


def test_shards_may_be_links(tmp_path):
    write(tmp_path / "blobs", shard_bytes=1)
    (tmp_path / "folder").mkdir()
    for file in (tmp_path / "blobs").iterdir():
        (tmp_path / "folder" / file.name).symlink_to(file)
    assert sorted(open_folder(tmp_path / "folder").weights().names()) == sorted(TENSORS)


def test_a_shard_that_is_missing(tmp_path):
    shard = sorted(write(tmp_path, shard_bytes=1).glob("*.safetensors"))[1]
    shard.unlink()
    assert f"lacks the shard {shard.name}" in refusal(tmp_path)


def test_a_tensor_that_its_shard_lacks(tmp_path):
    shard = sorted(write(tmp_path, shard_bytes=1).glob("*.safetensors"))[1]
    change_index(tmp_path, absent=shard.name)
    message = refusal(tmp_path)
    assert "absent" in message and shard.name in message


def test_a_tensor_in_two_shards(tmp_path):
    shards = sorted(write(tmp_path, shard_bytes=1).glob("*.safetensors"))
    save_file({**load_file(shards[1]), **load_file(shards[0])}, shards[1])
    message = refusal(tmp_path)
    assert "'embed.weight' twice" in message and shards[0].name in message and shards[1].name in message


def test_a_tensor_that_the_index_forgot_is_reachable(tmp_path):
    shard = sorted(write(tmp_path, shard_bytes=1).glob("*.safetensors"))[1]
    save_file({**load_file(shard), "forgotten": torch.ones(3)}, shard)
    assert torch.equal(open_folder(tmp_path).weights().tensor("forgotten"), torch.ones(3))


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {"a": 3}}])
def test_an_index_without_a_map(tmp_path, index):
    (write(tmp_path, shard_bytes=1) / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "has no weight_map" in refusal(tmp_path)


def test_files_without_an_index(tmp_path):
    (write(tmp_path, shard_bytes=1) / "model.safetensors.index.json").unlink()
    assert "no model.safetensors.index.json" in refusal(tmp_path)


def test_without_safetensors_the_line_that_installs_it(tmp_path, monkeypatch):
    weights = open_folder(write(tmp_path)).weights()
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert weights.shape("half") == (5,)
    with pytest.raises(Missing, match=r'pip install "regard\[train\]"'):
        weights.tensor("half")
    with pytest.raises(Missing, match=r'pip install "regard\[train\]"'):
        write(tmp_path / "new")
