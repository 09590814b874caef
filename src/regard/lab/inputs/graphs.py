"""Graphs as model inputs: nodes and edges, a file, or a molecule."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...errors import BadInput, Unsupported
from ...models.graph_encoder import GraphEncoderModel
from ...models.model import Model, Output
from ...tasks.nodes import Nodes
from ...tasks.task import AnyTask
from ..inspect.predictions import PredictionFields, class_prediction, node_prediction
from ..protocol import Json, Request
from .model_input import SHORT, GraphMetadata, ModelInput, Token

if TYPE_CHECKING:
    from .prepare import FileReader


def graph_input(model: Model, task: AnyTask | None, fields: Request, read_file: FileReader) -> ModelInput:
    """A graph given by its nodes and edges, by a molecule's SMILES, or as a file."""
    if "edges" in fields:
        features, edges, names = parse_graph(model, fields)
    elif "text" in fields:
        features, edges, names = read_smiles(task, fields["text"])
    else:
        features, edges, names = read_graph_file(task, read_file(fields))
    tokens = [Token(name, n, n + 1) for n, name in enumerate(names)]
    labels = None if task is None else task.labels
    metadata: GraphMetadata = {"edges": edges.to(torch.int32), "labels": labels}
    arguments = {"nodes": features, "edges": edges}
    read_output = lambda output: node_prediction(output.logits, labels)  # noqa: E731
    if isinstance(model, GraphEncoderModel) and not model.config.head.per_token:
        arguments["sizes"] = torch.tensor([len(names)])
        read_output = lambda output: graph_prediction(task, output, labels)  # noqa: E731
    return ModelInput(arguments, {"nodes": tokens}, "nodes", metadata, read_output)


def graph_prediction(task: AnyTask | None, output: Output, labels: list[str] | None) -> PredictionFields:
    """The prediction for a whole graph: classes, or the numbers and yes-or-no labels of its task."""
    assert output.logits is not None
    if task is None or task.target is None or task.target.kind == "class":
        return class_prediction(output.logits[0], labels)
    values = task.target.predictions([""], output.logits.float())[0].to_dict()
    texts = [f"{name}: {value}" for name, value in values.items() if name not in ("input", "probabilities")]
    return {"type": "text", "text": ", ".join(texts), "items": []}


def read_smiles(task: AnyTask | None, text: Json) -> tuple[Tensor, Tensor, list[str]]:
    """(features, edges, names) of a molecule: its atoms, then its bonds where these are nodes."""
    from ...data.graphs.molecules import ELEMENTS, read_molecule

    smiles = text.strip()[: SHORT.characters] if isinstance(text, str) else None
    inputs = None if task is None or smiles is None else task.molecule_inputs(smiles)
    if inputs is None or smiles is None:
        raise Unsupported("This model does not read molecules. Give a graph: nodes and edges, or a file.")
    features, edges = inputs
    molecule = read_molecule(smiles)
    atoms = molecule.atoms[:, : len(ELEMENTS)]
    elements = [ELEMENTS[int(row.argmax())] if bool(row.any()) else "?" for row in atoms]
    names = [f"{element} {n}" for n, element in enumerate(elements)]
    bonds = molecule.edges.t().tolist()[: len(features) - len(names)]
    return features, edges, names + [f"{elements[a]}–{elements[b]} {a},{b}" for a, b in bonds]


def parse_graph(model: Model, fields: Request) -> tuple[Tensor, Tensor, list[str]]:
    """(features, edges, names) of `edges` [[source, target], …] and `nodes`, their features or their number."""
    width = int(model.config.features)
    try:
        edges = torch.tensor(fields["edges"], dtype=torch.int64).reshape(-1, 2).t().contiguous()
        nodes = fields.get("nodes", int(edges.max()) + 1 if edges.numel() else 1)
        count = min(nodes, SHORT.tokens + 1) if isinstance(nodes, int) else 0
        features = torch.eye(count, width) if count else torch.tensor(nodes, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise BadInput(f"The graph is not a list of pairs of whole numbers with features ({error}).") from None
    if features.dim() != 2 or not 0 < len(features) <= SHORT.tokens or features.shape[1] != width:
        raise BadInput(
            f"The nodes are {list(features.shape)}; wanted 1 to {SHORT.tokens} of them with {width} features each."
        )
    if edges.numel() and (int(edges.min()) < 0 or int(edges.max()) >= len(features)):
        raise BadInput(f"An edge names node {int(edges.max())}; there are {len(features)}, 0 … {len(features) - 1}.")
    return features, edges, [str(n) for n in range(len(features))]


def read_graph_file(task: AnyTask | None, data: bytes) -> tuple[Tensor, Tensor, list[str]]:
    """(features, edges, names) of an NPZ file, as the task reads it."""
    if not isinstance(task, Nodes):
        raise Unsupported("Only runs of `regard train` read graph files. Give nodes and edges instead.")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "graph.npz"
        path.write_bytes(data)
        try:
            graph = task.read([path], task.settings).strict().examples[0].graph
        except BadInput as error:
            raise BadInput(str(error).replace(str(path), "The graph")) from None
    return *task.graph_inputs(graph), [str(n) for n in range(len(graph.nodes))]
