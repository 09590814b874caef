"""The commands `embed` and `search`: vectors of texts or images of a file, and the nearest of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from regard.terminal import Debug, Json, print_message, print_result, report_errors, typer

if TYPE_CHECKING:
    from regard.tasks.pretrained.embedder import Embedder

Checkpoint = Annotated[
    str, typer.Argument(help="Folder of a checkpoint or run, name of a shipped model, or a Hub id owner/name.")
]
Data = Annotated[
    list[Path], typer.Option("--data", help="Files of texts (lines, or a table), images, or folders of images.")
]
Column = Annotated[str | None, typer.Option("--column", help="Column of the texts in a table; found by default.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]


def embed(
    checkpoint: Checkpoint,
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="NumPy file for the vectors, [inputs, dim].")] = Path(
        "vectors.npy"
    ),
    column: Column = None,
    device: Device = "auto",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compute a vector for each text (or image) of a file, in the order of the file."""
    with report_errors(debug):
        from regard.inference.vector_index import write_vectors

        if out.suffix != ".npy":
            raise typer.BadParameter(f"{out} is no .npy file", param_hint="--out")
        embedder, _ = open_embedder(checkpoint, device)
        vectors = embedder.embed(list_inputs(data, column, embedder.processor is not None))
        write_vectors(out, vectors)
        facts = {"vectors": len(vectors), "dim": vectors.shape[1], "file": str(out)}
        print_result(facts, f"{len(vectors):,} vectors of {vectors.shape[1]} numbers in {out}", as_json)


def search(
    checkpoint: Checkpoint,
    query: Annotated[str, typer.Argument(help="Text to look for, or the path of an image for a model such as CLIP.")],
    data: Data,
    column: Column = None,
    top: Annotated[int, typer.Option("--top", min=1, help="How many results.")] = 5,
    cache: Annotated[
        bool, typer.Option(help="Save the vectors beside the first file, and use them while nothing has changed.")
    ] = True,
    device: Device = "auto",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Find the texts (or images) of a file that are nearest in meaning to a query."""
    with report_errors(debug):
        from regard.inference.vector_index import index_inputs

        embedder, folder = open_embedder(checkpoint, device)
        images = embedder.processor is not None
        inputs = list_inputs(data, column, images)
        path = data[0].resolve().with_name(f".{data[0].resolve().name}.vectors.npy") if cache else None
        index, cached = index_inputs(embedder, folder, inputs, path)
        if path is not None and not cached:
            print_message(f"{len(inputs):,} vectors are saved in {path}.")
        given = Path(query) if images and Path(query).is_file() else query
        matches = index.search(embedder.embed([given])[0], top)
        document = [{"row": match.row, "text": match.text, "score": round(match.score, 4)} for match in matches]
        print_result(document, "\n".join(f"{match.score:.4f}  {match.text}" for match in matches), as_json)


def open_embedder(checkpoint: str, device: str) -> tuple["Embedder", Path]:
    """The embedder of a checkpoint on a device, and the checkpoint's folder."""
    import torch

    from regard import Unsupported
    from regard.tasks.pretrained.embedder import Embedder
    from regard.train.run import open_pretrained

    if device == "cuda" and not torch.cuda.is_available():
        raise Unsupported("device is cuda, but torch finds no CUDA device. Give --device cpu or auto.")
    pretrained = open_pretrained(checkpoint)
    name = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    pretrained.model.to(name)
    return Embedder.from_pretrained(pretrained), pretrained.folder


def list_inputs(data: Sequence[Path], column: str | None, images: bool) -> list[str | Path]:
    """The texts of files and, of a model that reads images, the paths of images, in order."""
    from regard import BadInput
    from regard.data.images import ENDINGS
    from regard.data.listing import file_extension
    from regard.train.predictions import files_in_folder, rows_of_file

    inputs: list[str | Path] = []
    for path in data:
        if not path.exists():
            raise BadInput(f"{path} does not exist. Give a file of texts, an image or a folder of images.")
        if path.is_dir() or file_extension(path) in ENDINGS:
            if not images:
                raise BadInput(f"{path} holds images, and this checkpoint reads texts. Take one such as CLIP.")
            inputs += [Path(row.input) for row in files_in_folder(path, ENDINGS)] if path.is_dir() else [path]
        else:
            inputs += [row.input for row in rows_of_file(path, column)]
    if not inputs:
        raise BadInput(f"{', '.join(map(str, data))} has no texts.")
    return inputs
