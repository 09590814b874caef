"""Graphs for models whose tokens are nodes: typed by hand, from a file, or a molecule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from ...errors import BadInput, Unsupported
from ..inspect.predictions import classes, nodes
from .prepared import FEW, Prepared, Token


def graph_input(model: Any, task: Any, given: dict[str, Any], fetch: Callable[[dict[str, Any]], bytes]) -> Prepared:
    """A graph: one that is given by its nodes and edges, by a molecule's SMILES, or as a file."""
    if "edges" in given:
        features, edges, names = small_graph(model, given)
    elif "text" in given:
        features, edges, names = molecule(task, given["text"])
    else:
        features, edges, names = graph_file(task, fetch(given))
    tokens = [Token(name, n, n + 1) for n, name in enumerate(names)]
    labels = getattr(task, "labels", None) or getattr(getattr(task, "target", None), "labels", None)
    about = {"edges": edges.to(torch.int32), "labels": labels}
    arguments: dict[str, Any] = {"nodes": features, "edges": edges}
    if not getattr(getattr(model.config, "head", None), "per_token", True):  # one answer for the whole graph
        arguments["sizes"] = torch.tensor([len(names)])
        return Prepared(arguments, {"nodes": tokens}, "nodes", about, lambda output: of_whole(task, output, labels))
    return Prepared(arguments, {"nodes": tokens}, "nodes", about, lambda output: nodes(output.logits, labels))


def of_whole(task: Any, output: Any, labels: list[str] | None) -> dict[str, Any]:
    """What is said of a whole graph: classes, or as its run says numbers and yes or no."""
    if task is None or task.target.kind == "class":
        return classes(output.logits[0], labels)
    said = task.target.said(output.logits.float())[0]
    return {"kind": "text", "text": ", ".join(f"{name}: {value}" for name, value in said.items()), "items": []}


def molecule(task: Any, text: Any) -> tuple[Tensor, Tensor, list[str]]:
    """The graph of a SMILES for a run that has learned from molecules: atoms, then (where they are nodes) bonds."""
    from ...data.graph_sets import LabelledGraph
    from ...data.molecules import ELEMENTS, read_molecule

    if not hasattr(task, "draw_nodes") or task.settings.labels is not None or not isinstance(text, str):
        raise Unsupported("This model reads no molecules. Give it a graph: nodes and edges, or a file.")
    found = read_molecule(text.strip()[: FEW.characters])
    example = LabelledGraph(found.atoms, found.edges, (None,) * task.target.outputs, found.bonds)
    features = task.draw_nodes(example)
    elements = found.atoms[:, : len(ELEMENTS)]
    named = [ELEMENTS[int(row.argmax())] if bool(row.any()) else "?" for row in elements]
    names = [f"{element} {n}" for n, element in enumerate(named)]
    ends = found.edges.t().tolist()[: len(features) - len(names)]
    return features, task.edges(example), names + [f"{named[a]}–{named[b]} {a},{b}" for a, b in ends]


def small_graph(model: Any, given: dict[str, Any]) -> tuple[Tensor, Tensor, list[str]]:
    """A graph typed by hand: `edges` [[source, target], …], `nodes` their features, or how many there are."""
    wanted = int(model.config.features)
    try:
        edges = torch.tensor(given["edges"], dtype=torch.int64).reshape(-1, 2).t().contiguous()
        listed = given.get("nodes", int(edges.max()) + 1 if edges.numel() else 1)
        count = min(listed, FEW.tokens + 1) if isinstance(listed, int) else 0
        features = torch.eye(count, wanted) if count else torch.tensor(listed, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise BadInput(f"The graph is no list of pairs of whole numbers with features ({error}).") from None
    if features.dim() != 2 or not 0 < len(features) <= FEW.tokens or features.shape[1] != wanted:
        raise BadInput(
            f"The nodes are {list(features.shape)}; wanted 1 to {FEW.tokens} of them with {wanted} features each."
        )
    if edges.numel() and (int(edges.min()) < 0 or int(edges.max()) >= len(features)):
        raise BadInput(f"An edge names node {int(edges.max())}; there are {len(features)}, 0 … {len(features) - 1}.")
    return features, edges, [str(n) for n in range(len(features))]


def graph_file(task: Any, data: bytes) -> tuple[Tensor, Tensor, list[str]]:
    """The graph of an NPZ file, as the task reads it."""
    if task is None or not hasattr(task, "make_nodes"):
        raise Unsupported("Graph files are read by models that were trained here. Give nodes and edges instead.")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "graph.npz"
        path.write_bytes(data)
        try:
            graph = task.read([path], task.settings).strict().examples[0].graph
        except BadInput as error:
            raise BadInput(str(error).replace(str(path), "The graph")) from None
    return task.make_nodes(graph), graph.edges, [str(n) for n in range(len(graph.nodes))]
