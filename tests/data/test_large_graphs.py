"""Large graphs: arrays in memory maps, tables of edges in parts, and the memory that reading takes."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from regard import BadInput
from regard.data.graphs import Graph, mapped, read_nodes
from regard.data.graphs.edge_parts import line_blocks

NODES = 40


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    y = draw.integers(-1, 3, NODES)
    masks = {f"{name}_mask": np.arange(NODES) % 3 == n for n, name in enumerate(("train", "val", "test"))}
    x = draw.random((NODES, 5)).astype("float32")
    return {"x": x, "y": y, "edge_index": draw.integers(0, NODES, (2, 150)), **masks}


def save_folder(folder: Path, arrays: dict[str, np.ndarray], names: dict[str, str] | None = None) -> Path:
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / f"{(names or {}).get(name, name)}.npy", array)
    return folder


def read(path: Path, **options) -> Graph:
    (graph,) = read_nodes(path, **options).strict().examples
    return graph


def assert_same(a: Graph, b: Graph) -> None:
    assert torch.equal(a.nodes, b.nodes) and torch.equal(a.edges, b.edges) and torch.equal(a.labels, b.labels)
    assert a.classes == b.classes and a.masks.keys() == b.masks.keys()
    assert all(torch.equal(a.masks[name], b.masks[name]) for name in a.masks)


def test_a_folder_is_the_graph_of_the_archive(arrays, tmp_path):
    np.savez(tmp_path / "graph.npz", **arrays)
    names = {"x": "features", "y": "labels", "edge_index": "edges"}
    assert_same(read(save_folder(tmp_path / "graph", arrays, names)), read(tmp_path / "graph.npz"))
    assert_same(read(save_folder(tmp_path / "same", arrays)), read(tmp_path / "graph.npz"))


def test_large_members_of_an_archive_are_mapped(arrays, tmp_path, monkeypatch):
    arrays["edge_attr"] = np.random.default_rng(1).random((150, 2)).astype("float32")
    np.savez(tmp_path / "stored.npz", **arrays)
    np.savez_compressed(tmp_path / "packed.npz", **arrays)
    before = read(tmp_path / "stored.npz")
    monkeypatch.setattr(mapped, "MAPPED_BYTES", 1)
    maps = []
    original = mapped.map_array
    monkeypatch.setattr(mapped, "map_array", lambda *given: maps.append(given) or original(*given))
    stored = read(tmp_path / "stored.npz")
    assert len(maps) >= 4
    assert_same(stored, before)
    assert torch.equal(stored.edge_features, before.edge_features)
    maps.clear()
    assert_same(read(tmp_path / "packed.npz"), before)
    assert not maps
    stored.nodes[0, 0] = 99.0  # of this process alone
    assert_same(read(tmp_path / "stored.npz"), before)


def test_types_of_mapped_arrays_stay(arrays, tmp_path, monkeypatch):
    monkeypatch.setattr(mapped, "MAPPED_BYTES", 1)
    changed = {**arrays, "x": arrays["x"].astype("float16"), "edge_index": arrays["edge_index"].astype("int32")}
    graph = read(save_folder(tmp_path / "graph", changed))
    assert graph.nodes.dtype == torch.float16 and graph.edges.dtype == torch.int32
    unsigned = {**arrays, "edge_index": arrays["edge_index"].astype("uint32"), "x": arrays["x"].astype(">f4")}
    graph = read(save_folder(tmp_path / "other", unsigned))
    assert graph.nodes.dtype == torch.float32 and graph.edges.dtype == torch.int64


def write_part(path: Path, edges: np.ndarray, form: str) -> None:
    if form == "parquet":
        pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        from pyarrow import parquet

        parquet.write_table(
            pyarrow.table({"weight": [0.5] * edges.shape[1], "target": edges[1], "source": edges[0]}), path
        )
        return
    mark = {"csv": ",", "tsv": "\t", "txt": " "}[form]
    rows = [mark.join(map(str, (a, b, 0.5))) for a, b in edges.T.tolist()]
    head = {"csv": "source,target,weight\n", "tsv": "", "txt": "# from to weight\n"}[form]
    text = head + "\n".join(rows) + "\n"
    path.with_suffix(f".{form}").write_bytes(text.encode())


@pytest.mark.parametrize("form", ["csv", "tsv", "txt", "parquet"])
def test_a_table_in_parts_is_the_graph_of_the_array(arrays, tmp_path, form):
    whole = read(save_folder(tmp_path / "array", arrays))
    edges = arrays.pop("edge_index")
    folder = save_folder(tmp_path / "parts", arrays)
    for n, part in enumerate(np.array_split(edges, 3, axis=1)):
        write_part(folder / f"edges-{n:02}.{form}", part, form)
    assert_same(read(folder), whole)
    ranks = [read(folder, part=(rank, 2)) for rank in range(2)]
    assert all(graph.partial for graph in ranks) and not whole.partial
    both = torch.cat([graph.edges for graph in ranks], dim=1)
    assert sorted(both.T.tolist()) == sorted(whole.edges.T.tolist())
    assert 0 < ranks[0].edges.shape[1] < 150


def test_a_part_is_parsed_in_blocks(arrays, tmp_path, monkeypatch):
    edges = arrays.pop("edge_index")
    folder = save_folder(tmp_path / "parts", arrays)
    lines = "source,target\n" + "".join(f"{a},{b}\n" for a, b in edges.T.tolist())
    (folder / "edges.csv.gz").write_bytes(gzip.compress(lines.encode()))
    monkeypatch.setattr("regard.data.graphs.edge_parts.CHUNK", 64)
    assert len(list(line_blocks(folder / "edges.csv.gz"))) > 5
    assert read(folder).edges.T.tolist() == edges.T.tolist()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "0,1\n\n2,40\n3,77\n",
            r"edges.csv:3: an edge goes from 2 to 40 \(1 edge after it too\); the nodes are 0 to 39",
        ),
        ("0,1\n2,b\n", r"edges.csv:2:2: 'b' is no node"),
        ("source,target\n0,1\n2\n", r"edges.csv:3: has '2'; wanted a source and a target"),
        ("0\n1\n", r"edges.csv:1: has '0' in its first row"),
        ("", r"edges.csv: the file is empty"),
        ("0,1\n" + "7" * 25 + ",2\n", r"edges.csv:2:1: '7777"),
    ],
)
def test_bad_parts_are_named(arrays, tmp_path, text, words):
    arrays.pop("edge_index")
    folder = save_folder(tmp_path / "parts", arrays)
    (folder / "edges.csv").write_text(text)
    with pytest.raises(BadInput, match=words):
        read(folder)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("edge_index", lambda x: x.T, r"edge_index.npy: is int64 \[150, 2\]; wanted whole numbers \[2, edges\]"),
        ("edge_index", lambda x: x + 5, r"edge \d+ goes from"),
        ("x", lambda x: x * np.float32("nan"), r"x.npy: has nan for node 0, feature 0"),
        ("y", lambda x: x[:7], r"y.npy: has shape \[7\]"),
        ("train_mask", lambda x: x[:7], r"train_mask.npy: is bool \[7\]"),
        ("x", lambda x: x.astype(object), "Python objects"),
    ],
)
def test_bad_arrays_are_named(arrays, tmp_path, name, change, words):
    arrays[name] = change(arrays[name])
    with pytest.raises(BadInput, match=words):
        read(save_folder(tmp_path / "graph", arrays))


def test_cut_and_missing_files_are_named(arrays, tmp_path):
    folder = save_folder(tmp_path / "graph", arrays)
    os.truncate(folder / "x.npy", 200)
    with pytest.raises(BadInput, match=r"x.npy: is broken"):
        read(folder)
    (folder / "x.npy").write_bytes(b"no array")
    with pytest.raises(BadInput, match=r"x.npy: is broken"):
        read(folder)
    (folder / "edge_index.npy").unlink()
    np.save(folder / "x.npy", arrays["x"])
    with pytest.raises(BadInput, match=r"has no edges.npy for the edges. There are"):
        read(folder)


MEASURE = """
import json, sys, threading, torch
from regard.data.graphs import read_nodes

def anonymous():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) / 1024

def watch():
    while not closed.wait(0.005):
        peaks.append(anonymous())

read_nodes(sys.argv[1]).strict()
before, peaks, closed = anonymous(), [], threading.Event()
thread = threading.Thread(target=watch)
thread.start()
(graph,) = read_nodes(sys.argv[2]).strict().examples
rows = graph.nodes[torch.arange(0, len(graph.nodes), 4)]
closed.set()
thread.join()
print(json.dumps({"peak": max(peaks) - before, "edges": graph.edges.shape[1]}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_reading_a_map_takes_little_memory(arrays, tmp_path):
    """80 MB of edges and 128 MB of features, both mapped; the labels are 4 MB."""
    small = save_folder(tmp_path / "small", arrays)
    draw, nodes = np.random.default_rng(0), 500_000
    large = {
        "x": np.full((nodes, 64), 0.5, dtype="float32"),
        "y": draw.integers(0, 3, nodes),
        "edge_index": draw.integers(0, nodes, (2, 5_000_000)),
    }
    folder = save_folder(tmp_path / "large", large)
    for name in ("x", "edge_index"):
        (folder / f"{name}.npy").chmod(0o444)
    done = subprocess.run([sys.executable, "-c", MEASURE, small, folder], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    measured = json.loads(done.stdout)
    assert measured["edges"] == 5_000_000
    assert measured["peak"] < 100, measured  # MB; a fourth of the features is 32
