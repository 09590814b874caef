"""Export of models to `torch.export` and ONNX: graphs of plain operators, with sizes that may differ from call to call.

While a model is exported, each attention is computed by its formula: no operator of Regard is left in the graph. What a
model returns becomes a tuple of tensors: logits, boxes and pooled vectors, or the last layer where it has none of them.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from ...attention.attend import attend
from ...attention.interception import INTERCEPTORS, AttendArguments
from ...attention.parts.edges import Edges
from ...attention.parts.mask import Mask
from ...attention.parts.masks import Pairs
from ...attention.parts.methods import Exact
from ...errors import BadInput, Missing, RegardError, Unsupported
from ..graph_attention import GATConfig
from ..model import Model
from .example_inputs import make_example_inputs

Format = Literal["onnx", "torch"]
FORMATS = {"onnx": ".onnx", "torch": ".pt2"}
OUTPUTS = ("logits", "boxes", "pooled", "text", "image")
DYNAMIC = {
    "tokens": (0, 1),
    "segments": (0, 1),
    "words": (0, 1),
    "lengths": (0,),
    "targets": (0, 1),
    "target_lengths": (0,),
    "images": (0,),
    "sound": (0, 1),
    "nodes": (0,),
    "edges": (1,),
    "columns": (0,),
    "features": (0, 1),
    "global_tokens": (0, 1),
    "ngrams": (0, 1),
    "ngram_counts": (0, 1),
}
"""The dimensions of each argument that may differ from call to call."""
TOLERANCE = 1e-4

EXPORTING: ContextVar[bool] = ContextVar("exporting", default=False)


@dataclass(frozen=True)
class ExportedModel:
    """A file that was written: the arguments of its graph in order, the fields it returns, and the largest difference
    from the model on the example inputs (None where it could not be run here)."""

    file: Path
    format: Format
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    dynamic: dict[str, tuple[int, ...]]
    error: float | None


class PositionalModel(nn.Module):
    """A model whose arguments are given by position, and which returns a tuple of tensors."""

    def __init__(self, model: Model, names: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names, self.outputs = model, names, outputs

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        output = self.model(**dict(zip(self.names, inputs, strict=True)))
        return tuple(getattr(output, name) for name in self.outputs)


def export_model(
    model: Model, file: str | Path, format: Format | None = None, inputs: Mapping[str, Tensor] | None = None
) -> ExportedModel:
    """Write a model as an ONNX file (`.onnx`) or as a program of `torch.export` (`.pt2`), and check it.

    `inputs` are example arguments of the model, made for it by default; which arguments the graph has depends on them.
    Batch size and lengths may differ afterwards. Raises `Unsupported` with the reason for a model that cannot be
    exported, and when the exported graph gives other numbers.
    """
    file = Path(file)
    format = choose_format(file, format)
    config = model.config
    if isinstance(config, GATConfig) and config.edge_features and config.self_loops:
        raise Unsupported(
            "A graph attention that reads numbers of edges gives each node an edge to itself with their mean; which "
            "edges these replace depends on the graph, and torch.export cannot trace that. Train with "
            "edge_features=false, or with --model transformer."
        )
    if inputs is None:
        inputs = make_example_inputs(model)
    given = {name: value.to(model.device) for name, value in inputs.items()}
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            output = model(**given)
            named = tuple(name for name in OUTPUTS if getattr(output, name) is not None) or ("hidden",)
            wanted = [getattr(output, name) for name in named]
            wrapper = PositionalModel(model, tuple(given), named).eval()
            program = trace(wrapper, given)
        file.parent.mkdir(parents=True, exist_ok=True)
        if format == "torch":
            torch.export.save(program, file)
            actual = list(torch.export.load(file).module()(*given.values()))
        else:
            write_onnx(program, file, tuple(given), named)
            actual = run_onnx(file, given)
    finally:
        model.train(training)
    error = None if actual is None else max_difference(actual, wanted)
    if error is not None and not error <= TOLERANCE:
        raise Unsupported(
            f"The exported graph differs from {type(model).__name__} by {error:.1e}, more than {TOLERANCE:g}. The file "
            f"{file} should not be used."
        )
    return ExportedModel(file, format, tuple(given), named, dynamic_sizes(program, given), error)


def choose_format(file: Path, format: Format | None) -> Format:
    """The format by its name, or by the file's extension."""
    if format is not None:
        if format not in FORMATS:
            raise BadInput(f"format is {format!r}; it must be 'onnx' or 'torch'.")
        return format
    for name, extension in FORMATS.items():
        if file.suffix == extension:
            return name  # type: ignore[return-value]
    raise BadInput(f"{file.name} does not say which format is wanted: end it with .onnx or .pt2, or give format=.")


def trace(wrapper: PositionalModel, given: Mapping[str, Tensor]) -> torch.export.ExportedProgram:
    """The program of a model, with attention as plain operators."""
    sizes = tuple(
        dict.fromkeys(range(value.dim()) if name == "tokens" else DYNAMIC.get(name, (0,)), torch.export.Dim.AUTO)
        for name, value in given.items()
    )
    try:
        with plain_attention(), quiet():
            return torch.export.export(wrapper, tuple(given.values()), dynamic_shapes=(sizes,), strict=False)
    except RegardError:
        raise
    except Exception as error:  # of torch.export, of many kinds
        reason = str(error).strip().split("\n")[0]
        raise Unsupported(
            f"{type(wrapper.model).__name__} cannot be exported: {reason:.300} (torch.export, {type(error).__name__})."
        ) from error


@contextmanager
def plain_attention() -> Iterator[None]:
    """While open, calls of `attend` in this thread and task are computed by the formula, in plain operators."""
    token = EXPORTING.set(True)
    INTERCEPTORS.append(attend_plainly)
    try:
        yield
    finally:
        INTERCEPTORS.remove(attend_plainly)
        EXPORTING.reset(token)


def attend_plainly(arguments: AttendArguments) -> Tensor | None:
    """The output of a call by the reference backend; None outside of an export."""
    if not EXPORTING.get():
        return None
    token = EXPORTING.set(False)  # the call below is answered by attend itself
    try:
        method, q, k = arguments.get("method"), arguments["q"], arguments["k"]
        mask = edges_as_pairs(arguments.get("mask"), q.shape[2], k.shape[2])
        backend = "reference" if method is None or isinstance(method, Exact) else "auto"
        return attend(**{**arguments, "mask": mask, "backend": backend})
    finally:
        EXPORTING.reset(token)


def edges_as_pairs(mask: Mask | None, queries: int, keys: int) -> Mask | None:
    """A graph as a boolean for each pair: sorting edges has a size that depends on their values."""
    if not isinstance(mask, Edges):
        return mask
    source, target = mask.edge_index.long()
    allowed = torch.zeros(queries * keys, dtype=torch.int64, device=source.device)
    allowed = allowed.scatter(0, target * keys + source, torch.ones_like(source))
    return Pairs(allowed.view(queries, keys) > 0)


@contextmanager
def quiet() -> Iterator[None]:
    """While open, torch's notes about sizes that became constants are not printed."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def write_onnx(
    program: torch.export.ExportedProgram, file: Path, inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise Missing('ONNX needs onnx and onnxscript: pip install "regard[onnx]".') from None
    try:
        with quiet():
            torch.onnx.export(
                program, (), str(file), input_names=list(inputs), output_names=list(outputs), dynamo=True,
                external_data=False, verbose=False, optimize=False,
            )  # fmt: skip
    except Exception as error:  # of torch.onnx, of many kinds
        cause = error.__cause__ or error
        raise Unsupported(f"The graph cannot be written as ONNX: {str(cause).strip():.300}") from error


def run_onnx(file: Path, given: Mapping[str, Tensor]) -> list[Tensor] | None:
    """The outputs of an ONNX file; None where onnxruntime is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = {value.name for value in session.get_inputs()}
    feed = {name: value.cpu().numpy() for name, value in given.items() if name in names}
    return [torch.from_numpy(array) for array in session.run(None, feed)]


def max_difference(actual: list[Tensor], wanted: list[Tensor]) -> float:
    """The largest difference of the outputs; infinite where they have other shapes."""
    if [x.shape for x in actual] != [x.shape for x in wanted]:
        return float("inf")
    return max(
        float((a.detach().cpu().float() - b.detach().cpu().float()).abs().max()) if a.numel() else 0.0
        for a, b in zip(actual, wanted, strict=True)
    )


def dynamic_sizes(program: torch.export.ExportedProgram, given: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """The dimensions of each argument that may differ from call to call."""
    placeholders = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    values = [placeholders[name] for name in program.graph_signature.user_inputs if name in placeholders]
    return {
        name: tuple(n for n, size in enumerate(value.shape) if isinstance(size, torch.SymInt))
        for name, value in zip(given, values, strict=False)
    }
