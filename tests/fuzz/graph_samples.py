"""Valid files of graphs: tables, folders of arrays, edges in parts, and folders of data sets."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from samples import Family, columnar, write_stream

from regard.data import read_graphs, read_nodes, read_texts
from regard.data.graphs.graph_sets import read_unlabelled_graphs

EDGES = "source,target,weight\na,b,0.5\nb,c,1\nc,a,2\n"
NODES = "node,f,label\na,1,x\nb,2,y\nc,3,x\n"
GRAPHS = "graph,source,target,weight\n1,a,b,0.5\n1,b,a,1\n2,c,d,2\n"
GRAPH_NODES = "graph,node,f\n1,a,0.5\n1,b,1\n2,c,2\n2,d,3\n"


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(array))
    return file.getvalue()


def edge_parquet() -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.table({"source": [2, 3], "target": [1, 0]}), file)
    return file.getvalue()


def read_folder(folder: Path) -> Any:
    return read_nodes(folder / "graph")


def read_share(folder: Path) -> Any:
    """What the second of two processes reads."""
    return read_nodes(folder / "graph", part=(1, 2))


def families() -> dict[str, Family]:
    """Every family by its name."""
    arrays = {
        "graph/features.npy": npy(np.eye(4, dtype=np.float32)),
        "graph/labels.npy": npy(np.arange(4) % 2),
        "graph/train_mask.npy": npy(np.array([True, False, True, True])),
        "graph/val_mask.npy": npy(np.array([False, True, False, False])),
    }
    parts = {
        "graph/edges-00.csv": b"source,target\n0,1\n1,2\n",
        "graph/edges-01.csv.gz": gzip.compress(b"source,target\n3,2\n\n0,3\n"),
        "graph/edges-02.tsv": b"0\t1\n2\t3\n",
        "graph/edges-03.parquet": edge_parquet(),
    }
    whole = {**arrays, "graph/edges.npy": npy([[0, 1, 2], [1, 2, 3]]), "graph/edge_attr.npy": npy(np.ones((3, 2)))}
    saved = {
        "set/dataset_dict.json": b'{"splits": ["train", "test"]}',
        **{
            f"set/{split}/{name}": data
            for split in ("train", "test")
            for name, data in {
                "data-00000-of-00001.arrow": columnar(write_stream),
                "state.json": b'{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}',
                "dataset_info.json": json.dumps(
                    {"features": {"label": {"names": ["neg", "pos"], "_type": "ClassLabel"}}}
                ).encode(),
            }.items()
        },
    }
    return {
        "graph tables": Family(
            {"edges.csv": EDGES.encode(), "nodes.csv": NODES.encode(), "labels.csv": b"node,label\na,x\nb,y\n"},
            ("edges.csv", "nodes.csv", "labels.csv"),
            (
                lambda folder: read_nodes(folder / "edges.csv", features=folder / "nodes.csv"),
                lambda folder: read_nodes(folder / "edges.csv", labels=folder / "labels.csv", undirected=True),
            ),
        ),
        "sets of graphs": Family(
            {
                "edges.csv": GRAPHS.encode(),
                "nodes.csv": GRAPH_NODES.encode(),
                "labels.csv": b"graph,label\n1,x\n2,y\n",
                "smiles.csv": b"smiles,label\nCCO,1\nc1ccccc1,0\n",
            },
            ("edges.csv", "nodes.csv", "labels.csv", "smiles.csv"),
            (
                lambda folder: read_graphs(folder / "edges.csv", labels=folder / "labels.csv"),
                lambda folder: read_graphs(
                    folder / "edges.csv", labels=folder / "labels.csv", nodes=folder / "nodes.csv"
                ),
                lambda folder: read_unlabelled_graphs(folder / "edges.csv", folder / "nodes.csv"),
                lambda folder: read_graphs(folder / "smiles.csv"),
            ),
        ),
        "graph folder": Family(whole, tuple(whole), (read_folder,)),
        "graph folder, edges in parts": Family(arrays | parts, tuple(parts), (read_folder, read_share)),
        "data set folder": Family(saved, tuple(saved), (lambda folder: read_texts(folder / "set"),)),
    }
