"""Graphs from arrays and tables, against torch-geometric and scipy; edges to nowhere are faults at their place."""

import sys
from collections import Counter

import numpy as np
import pytest
import scipy.sparse
import torch

from regard.data.graphs import draw_masks, read_nodes
from regard.data.graphs.graph_sets import read_graphs, split_by_scaffold
from regard.data.graphs.molecules import ATOM_FEATURES, BOND_FEATURES, murcko_scaffold, read_molecule
from regard.data.graphs.structure import degree_features, spectral_features, walk_features
from regard.errors import BadInput, Missing


@pytest.fixture
def arrays(tmp_path):
    good = {
        "x": np.arange(20, dtype=np.float32).reshape(5, 4) % 3,
        "y": np.array([0, 1, 2, 1, -1]),
        "edge_index": np.array([[0, 1, 1, 2, 4], [1, 0, 2, 1, 3]], dtype=np.int32),
        "train_mask": np.array([True, True, False, False, False]),
        "val_mask": np.array([False, False, True, False, False]),
        "test_mask": np.array([False, False, False, True, False]),
    }

    def save(**changes):
        np.savez(tmp_path / "a.npz", **{name: one for name, one in (good | changes).items() if one is not None})
        return tmp_path / "a.npz", good

    return save


def test_nodes_of_arrays(arrays):
    path, good = arrays()
    (graph,) = read_nodes(path).strict().examples
    assert torch.equal(graph.nodes, torch.from_numpy(good["x"])) and graph.nodes.dtype == torch.float32
    assert torch.equal(graph.edges, torch.from_numpy(good["edge_index"]).long())
    assert graph.labels.tolist() == [0, 1, 2, 1, -1] and graph.classes == ("0", "1", "2")
    assert {split: mask.nonzero()[:, 0].tolist() for split, mask in graph.masks.items()} == {
        "train": [0, 1],
        "dev": [2],
        "test": [3],
    }


def test_sparse_features_equal_dense_ones(arrays):
    _, good = arrays()
    sparse = scipy.sparse.csr_matrix(good["x"])
    changes = {
        "x_data": sparse.data,
        "x_indices": sparse.indices,
        "x_indptr": sparse.indptr,
        "x_shape": np.array((5, 4)),
    }
    path, _ = arrays(x=None, **changes)
    assert torch.equal(read_nodes(path).strict().examples[0].nodes, torch.from_numpy(good["x"]))


def test_sparse_features_that_do_not_fit(arrays, only_fault, monkeypatch):
    changes = {"x_data": np.ones(2), "x_indices": np.array([0, 9]), "x_indptr": np.array([0, 1, 1, 1, 1, 2])}
    path, _ = arrays(x=None, x_shape=np.array((5, 4)), **changes)
    assert "do not fit together" in only_fault(read_nodes(path), path)[2]
    monkeypatch.setenv("REGARD_MAX_GRAPH_FEATURES", "10")
    message = only_fault(read_nodes(path), path)[2]
    assert "20 features of nodes; the limit is 10" in message and "set REGARD_MAX_GRAPH_FEATURES=20" in message


@pytest.mark.parametrize("undirected", [False, True])
def test_reverse_edges_are_added_when_asked(arrays, undirected):
    path, good = arrays()
    reading = read_nodes(path, undirected=undirected).strict()
    edges = torch.from_numpy(good["edge_index"]).long()
    wanted = edges
    if undirected:
        wanted = pytest.importorskip("torch_geometric.utils").to_undirected(edges)
    assert set(map(tuple, reading.examples[0].edges.T.tolist())) == set(map(tuple, wanted.T.tolist()))
    assert any("edges without a reverse: 1 of 5" in note for note in reading.notes) is not undirected


def test_edges_to_nowhere_are_faults(arrays):
    path, _ = arrays(edge_index=np.array([[0, 5, 1, -1], [1, 0, 2, 0]]))
    reading = read_nodes(path)
    assert [fault.message for fault in reading.faults] == [
        "edge 1 goes from 5 to 0; the 5 nodes are 0 to 4.",
        "edge 3 goes from -1 to 0; the 5 nodes are 0 to 4.",
    ]
    assert reading.examples[0].edges.tolist() == [[0, 1], [1, 2]]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"y": None}, "has no array 'y' for the label."),
        ({"y": np.zeros(4)}, "has shape [4]; wanted [5]"),
        ({"x": np.zeros(5)}, "wanted numbers [nodes, features]."),
        ({"x": np.full((5, 2), np.nan)}, "has nan for node 0, feature 0"),
        ({"edge_index": np.zeros((4, 2), int)}, "wanted whole numbers [2, edges]."),
        ({"edge_index": None}, "has no array 'edge_index' for the edges."),
        ({"train_mask": np.zeros(5)}, "wanted bool [5]."),
    ],
)
def test_what_is_wrong_with_arrays(arrays, only_fault, changes, message):
    path, _ = arrays(**changes)
    reading = read_nodes(path)
    assert message in only_fault(reading, path)[2] and not reading.examples


def test_masks_that_overlap_are_noted(arrays):
    path, _ = arrays(test_mask=np.ones(5, bool))
    assert "2 nodes in both train and test" in read_nodes(path).notes


EDGES = "source,target\n甲,乙\n乙,丙\n"
FEATURES = "id,f1,f2\n甲,1,0.5\n乙,2,-1\n丙,3,4e-1\n"
LABELS = "id,label,split\n丙,red,test\n甲,blue,train\n"


@pytest.fixture
def tables(write):
    def make(edges=EDGES, features=FEATURES, labels=LABELS, **settings):
        settings |= {"labels": write("labels.csv", labels)} if labels else {}
        return read_nodes(write("edges.csv", edges), features=write("features.csv", features), **settings)

    return make


def test_numbers_of_edges_and_string_ids(tables, only_fault):
    edges = "src,dst,weight,when,kind\n甲,乙,0.5,3,x\n乙,丙,2,4,y\n丙,丙,1,5,x\n"
    graph = tables(edges=edges, undirected=True).strict().examples[0]
    assert graph.edge_names == ("weight", "when") and graph.names == ("甲", "乙", "丙")
    assert graph.edges.tolist() == [[0, 1, 2, 1, 2], [1, 2, 2, 0, 1]]
    assert graph.edge_features.tolist() == [[0.5, 3], [2, 4], [1, 5], [0.5, 3], [2, 4]]
    assert any("numbers of edges = 'weight', 'when'; not read: 'kind'" in note for note in tables(edges=edges).notes)
    many = "".join(f"甲,乙,{n}\n" for n in range(20))
    fault = only_fault(tables(edges=f"src,dst,weight\n{many}乙,丙,heavy\n"))
    assert fault[:2] == (22, 5) and "wanted a number" in fault[2]


def test_graphs_without_features(write):
    labels = write("labels.csv", "node,label\nc,red\na,blue\n")
    graph = read_nodes(write("edges.txt", "# a comment\na b 0.5\nb c 1\nc d 2\n"), labels=labels).strict().examples[0]
    assert graph.nodes.shape == (4, 0) and graph.names == ("c", "a", "b", "d")
    assert graph.edges.tolist() == [[1, 2, 0], [2, 0, 3]] and graph.edge_features[:, 0].tolist() == [0.5, 1, 2]
    assert graph.labels.tolist() == [1, 0, -1, -1]
    with pytest.raises(BadInput, match="give a table of the nodes too"):
        read_nodes(write("edges.csv", EDGES))


def test_arrays_without_features_and_with_numbers_of_edges(arrays, only_fault):
    path, good = arrays(x=None, edge_attr=np.arange(12, dtype=np.float32).reshape(-1, 2))
    count = good["edge_index"].shape[1]
    path, _ = arrays(x=None, edge_attr=np.arange(2 * count).reshape(-1, 2))
    graph = read_nodes(path).strict().examples[0]
    assert graph.nodes.shape == (5, 0) and graph.edge_features.tolist() == [[2 * n, 2 * n + 1] for n in range(count)]
    path, _ = arrays(edge_attr=np.zeros((count + 1, 2)))
    assert "the array 'edge_attr'" in only_fault(read_nodes(path), path)[2]


def test_features_of_the_structure():
    ring = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3]])
    spectral = spectral_features(ring, 6, 4)
    assert spectral.shape == (6, 4) and torch.equal(spectral, spectral_features(ring, 6, 4))
    assert torch.allclose(spectral[0, 0], spectral[1, 0], atol=1e-4)  # two triangles: the first vectors tell them apart
    assert abs(spectral[0, 0] - spectral[3, 0]) > 0.5 or abs(spectral[0, 0]) < 1e-4
    assert spectral_features(torch.empty(2, 0, dtype=torch.int64), 1, 3).tolist() == [[0, 0, 0]]
    walks = walk_features(ring, 6, 3)
    assert torch.allclose(walks[0], torch.tensor([0.0, 0.5, 0.25]))
    path = torch.tensor([[0, 1], [1, 2]])
    assert torch.allclose(degree_features(path, 3)[:, 0].exp(), torch.tensor([1.0, 2, 2]))


def test_nodes_of_tables(tables):
    reading = tables().strict()
    (graph,) = reading.examples
    assert torch.equal(graph.nodes, torch.tensor([[1, 0.5], [2, -1], [3, 0.4]]))
    assert graph.edges.tolist() == [[0, 1], [1, 2]]
    assert graph.classes == ("blue", "red") and graph.labels.tolist() == [0, -1, 1]
    assert {split: mask.tolist() for split, mask in graph.masks.items()} == {
        "train": [True, False, False],
        "test": [False, False, True],
    }
    assert "1 node of 3 without a label" in reading.notes


def test_a_node_of_two_labels_is_a_fault(tables):
    reading = tables(labels=LABELS + "甲,blue,train\n甲,red,train\n")
    assert [(one.line, one.message) for one in reading.faults] == [
        (5, "the node '甲' has the label 'blue' above, and 'red' here.")
    ]
    assert reading.examples[0].labels.tolist() == [0, -1, 1], "the first counts; the same again is no fault"


def test_labels_among_the_features(tables):
    features = "node,f1,label,part\n甲,1,b,train\n乙,2,,\n丙,3,a,dev\n"
    (graph,) = tables(features=features, labels=None).strict().examples
    assert graph.nodes.tolist() == [[1], [2], [3]] and graph.labels.tolist() == [1, -1, 0]
    assert graph.masks["dev"].tolist() == [False, False, True]
    other = tables(features="node,f1,colour\n甲,1,b\n乙,2,a\n丙,3,a\n", labels=None, label="colour")
    assert other.examples[0].labels.tolist() == [1, 0, 0] and other.examples[0].masks == {}


@pytest.mark.parametrize(
    "settings, file, line, column, message",
    [
        ({"edges": EDGES + "丙,丁\n"}, "edges", 4, 3, "goes to or from '丁', which is no node that was read."),
        ({"edges": EDGES + "丙\n"}, "edges", 4, None, "has 1 column; wanted 2"),
        ({"features": FEATURES + "丁,x,1\n"}, "features", 5, 3, "the feature (column 'f1') is 'x'; wanted a number."),
        ({"features": FEATURES + "丁,1,nan\n"}, "features", 5, 5, "the feature (column 'f2') is 'nan'"),
        ({"features": FEATURES + "甲,1,1\n"}, "features", 5, 1, "the node '甲' stands here a second time."),
        ({"labels": LABELS + "戊,red,test\n"}, "labels", 4, 1, "there is no node '戊' among the features."),
        ({"labels": LABELS + "乙,red,later\n"}, "labels", 4, 7, "the split is 'later'"),
        ({"labels": "id,label\n甲,\n"}, "labels", 1, None, "has no labels."),
        ({"labels": "id,label\n甲,a\n乙\n"}, "labels", 3, None, "has 1 column; wanted 2"),
    ],
)
def test_what_is_wrong_with_tables(tables, only_fault, tmp_path, settings, file, line, column, message):
    found = only_fault(tables(**settings), tmp_path / f"{file}.csv")
    assert found[:2] == (line, column) and message in found[2]


def test_edges_need_features(write):
    with pytest.raises(BadInput, match="with features="):
        read_nodes(write("edges.csv", EDGES))


def test_masks_are_drawn_among_the_labelled(arrays):
    path, _ = arrays(y=np.array([0, 1, 0, 1, 2]), train_mask=None, val_mask=None, test_mask=None)
    graph = read_nodes(path).examples[0]
    drawn = draw_masks(graph, dev=0.2, test=0.4, seed=1)
    sizes = {split: int(mask.sum()) for split, mask in drawn.masks.items()}
    assert sizes == {"train": 2, "dev": 1, "test": 2}
    assert torch.equal(sum(mask.int() for mask in drawn.masks.values()), torch.ones(5, dtype=torch.int32))
    again = draw_masks(graph, dev=0.2, test=0.4, seed=1)
    assert all(torch.equal(drawn.masks[split], again.masks[split]) for split in drawn.masks)
    unlabelled = draw_masks(read_nodes(arrays()[0]).examples[0])
    assert not any(mask[4] for mask in unlabelled.masks.values())
    with pytest.raises(BadInput, match="leave some for training"):
        draw_masks(graph, dev=0.5, test=0.5)


MANY = "graph,source,target\nA,0,1\nA,1,2\nB,x,y\n"


def test_graphs_of_edges(write):
    labels = write("labels.csv", "graph,label\nB,no\nA,yes\n")
    reading = read_graphs(write("edges.csv", MANY), labels=labels).strict()
    assert [(one.name, one.label, one.edges.tolist(), one.nodes.shape) for one in reading.examples] == [
        ("B", "no", [[0], [1]], (2, 4)),
        ("A", "yes", [[0, 1], [1, 2]], (3, 4)),
    ]
    incoming = reading.examples[1].nodes[:, 1].exp() - 1
    assert torch.allclose(incoming, torch.tensor([0.0, 1, 1]))


def test_graphs_with_features_and_numbers(write):
    nodes = write("nodes.csv", "graph,node,a,b\nA,2,1,2\nA,1,3,4\nA,0,5,6\nB,x,7,8\nB,y,9,10\nC,lone,0,1\n")
    labels = write("labels.csv", "graph,value\nA,0.5\nB,2\nC,-1\n")
    reading = read_graphs(write("edges.csv", MANY), labels=labels, nodes=nodes).strict()
    first, _, lone = reading.examples
    assert first.nodes.tolist() == [[1, 2], [3, 4], [5, 6]] and first.edges.tolist() == [[2, 1], [1, 0]]
    assert [one.label for one in reading.examples] == [0.5, 2.0, -1.0]
    assert lone.nodes.tolist() == [[0, 1]] and lone.edges.shape == (2, 0)


@pytest.mark.parametrize("kind, wanted", [(None, "1"), ("class", "1"), ("number", 1.0)])
def test_whole_numbers_are_classes_unless_said(write, kind, wanted):
    labels = write("labels.csv", "graph,label\nA,1\nB,0\n")
    assert read_graphs(write("edges.csv", MANY), labels=labels, kind=kind).strict().examples[0].label == wanted


@pytest.mark.parametrize(
    "labels, nodes, file, line, column, message",
    [
        ("graph,label\nA,1\nC,0\n", None, "labels", 3, 1, "the graph 'C' has no edges."),
        ("graph,label\nA,1\nA,0\n", None, "labels", 3, 1, "the graph 'A' stands here a second time."),
        ("graph,label\nA,1\nB,\n", None, "labels", 3, 3, "the label (column 'label') is empty."),
        ("graph,label\nA,1\n", "graph,node,f\nA,0,1\nA,1,1\nB,x,1\nB,y,1\n", "edges", 3, 5, "goes to or from '2'"),
        ("graph,label\nA,1\nB,1\n", "graph,node,f\nA,0,1\nA,1,1\nA,2,z\n", "nodes", 4, 5, "is 'z'; wanted a number."),
        (
            "graph,label\nA,1\n",
            "graph,node,f\nA,0,1\nA,0,1\n",
            "nodes",
            3,
            3,
            "the node '0' stands here a second time.",
        ),
        ("graph,label\nA,1\n", "graph,node\nA,0\n", "nodes", 1, None, "wanted graph, node and numbers."),
    ],
)
def test_what_is_wrong_with_graphs(write, tmp_path, labels, nodes, file, line, column, message):
    beside = {"nodes": write("nodes.csv", nodes)} if nodes else {}
    reading = read_graphs(write("edges.csv", MANY), labels=write("labels.csv", labels), **beside)
    found = {(fault.file, fault.line, fault.column): fault.message for fault in reading.faults}
    assert message in found[str(tmp_path / f"{file}.csv"), line, column]


def test_graphs_without_a_label_are_noted(write):
    reading = read_graphs(write("edges.csv", MANY), labels=write("labels.csv", "graph,label\nA,1\n"))
    assert len(reading.strict()) == 1 and "1 graph without a label left out, such as 'B'" in reading.notes


def test_molecules_need_rdkit(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(Missing, match="pip install"):
        read_graphs(write("a.csv", "smiles,label\nCCO,1\n"))


def test_a_molecule_is_its_atoms_and_bonds():
    chem = pytest.importorskip("rdkit.Chem")
    from torch_geometric.utils import from_smiles

    smiles = "CC(=O)Oc1ccccc1C(=O)O"
    found, theirs = read_molecule(smiles), from_smiles(smiles)
    assert found.atoms.shape == (chem.MolFromSmiles(smiles).GetNumAtoms(), ATOM_FEATURES)
    assert set(map(tuple, found.edges.T.tolist())) == set(map(tuple, theirs.edge_index.T.tolist()))
    assert found.bonds.shape == (found.edges.shape[1], BOND_FEATURES)
    kinds = {
        tuple(edge): row[:5].argmax().item() for edge, row in zip(found.edges.T.tolist(), found.bonds, strict=True)
    }
    assert kinds[1, 2] == kinds[2, 1] == 1 and kinds[0, 1] == 0 and kinds[4, 5] == 3
    aromatic = found.atoms[:, -3]
    assert torch.equal(aromatic, theirs.x[:, 7].float()) and aromatic.sum() == 6


def test_molecules_of_a_table(write, only_fault):
    pytest.importorskip("rdkit")
    path = write("a.csv", "name,exp,smiles\nwater,-0.5,O\nbad,1.5,C1CC\nethanol,2,CCO\n")
    reading = read_graphs(path, label="exp")
    line, column, message = only_fault(reading, path)
    assert (line, column) == (3, 9) and "'C1CC' is not a valid SMILES" in message
    water, ethanol = reading.examples
    assert (water.label, water.name, water.edges.shape, water.edge_features.shape) == (
        -0.5,
        "O",
        (2, 0),
        (0, BOND_FEATURES),
    )
    assert ethanol.edges.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]


def test_molecules_of_one_scaffold_stay_together(write):
    pytest.importorskip("rdkit")
    assert (
        murcko_scaffold("CC(=O)Oc1ccccc1C(=O)O") == murcko_scaffold("Oc1ccccc1") == "c1ccccc1"
        and murcko_scaffold("CCO") == ""
    )
    chains, rings = ["C" * n + "O" for n in range(1, 13)], ["c1ccccc1" + "C" * n for n in range(1, 4)]
    others = ["C1CCCCC1O", "C1CCCC1O", "c1ccncc1C", "C1CC1C", "c1ccoc1C"]
    lines = [f"{smiles},{n}.5" for n, smiles in enumerate([*others, *rings, *chains])]
    reading = split_by_scaffold(read_graphs(write("a.csv", "\n".join(["smiles,value", *lines, ""]))))
    splits = {example.name: example.split for example in reading.examples}
    assert {splits[one] for one in chains} == {splits[one] for one in rings} == {"train"}  # 12 and 3 of 20: 16 at most
    counts = Counter(splits.values())
    assert counts == {"train": 16, "dev": 2, "test": 2}
    kinds = {split: {murcko_scaffold(name) for name in splits if splits[name] == split} for split in counts}
    assert kinds["train"] & (kinds["dev"] | kinds["test"]) == set() and any(
        "scaffolds" in note for note in reading.notes
    )
    assert split_by_scaffold(reading).examples[0].split == reading.examples[0].split


def test_one_word_does_not_make_classes_of_numbers(write):
    edges = "".join(f"g{n},0,1\n" for n in range(31))
    values = "".join(f"g{n},{n / 3:.3f}\n" for n in range(30))
    labels = write("labels.csv", f"graph,label\n{values}g30,abc\n")
    reading = read_graphs(write("edges.csv", f"graph,source,target\n{edges}"), labels=labels)
    assert isinstance(reading.examples[0].label, float) and len(reading.examples) == 30
    assert [one.line for one in reading.faults] == [32]


def test_graphs_have_numbers_of_edges(write):
    edges = "graph,source,target,length\nA,0,1,0.5\nA,1,2,2\nB,x,y,3\n"
    labels = write("labels.csv", "graph,label\nB,no\nA,yes\n")
    reading = read_graphs(write("edges.csv", edges), labels=labels).strict()
    assert [one.edge_features.tolist() for one in reading.examples] == [[[3.0]], [[0.5], [2.0]]]
