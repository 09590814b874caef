"""`regard plan scale`: what a mask costs over many ranks, predicted."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from ..terminal import Debug, Json, print_result, report_errors, typer

app = typer.Typer(help="Plan calls without running them.", no_args_is_help=True)


@app.callback()
def plan() -> None:
    """Plan calls without running them."""


@app.command(
    epilog='Example: regard plan scale "Causal() & Window(4095)" --tokens 1000000 --ranks 64 --link infiniband'
)
def scale(
    mask: Annotated[str, typer.Argument(help="The mask, as in Python, such as Causal() or longformer(512).")],
    tokens: Annotated[int, typer.Option(help="Length of the sequence.", min=1)] = 1_000_000,
    ranks: Annotated[int, typer.Option(help="Number of processes, one GPU each.", min=1)] = 16,
    link: Annotated[str, typer.Option(help="What connects them: nvlink, infiniband, ethernet or gloo.")] = "infiniband",
    heads: Annotated[int, typer.Option(help="Heads of the queries.", min=1)] = 32,
    kv_heads: Annotated[int, typer.Option(help="Heads of the keys and values.", min=1)] = 8,
    dim: Annotated[int, typer.Option(help="Size of a head.", min=1)] = 128,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Predict time, bytes and balance of an attention layer over many ranks, for every way to share a sequence out.

    Beside Regard's layouts stand an all-gather of all keys, a ring, and Ulysses where the heads suffice. Times are of a
    forward pass; the links are nominal.
    """
    from ..attention.parts.text import parse_mask
    from ..distributed.simulate import Heads, simulate, table

    with report_errors(debug):
        predictions = simulate(parse_mask(mask), tokens, ranks, link, Heads(heads, kv_heads, dim))
        title = f"{mask}, {tokens:,} tokens over {ranks} ranks, {link}, {heads}/{kv_heads} heads of {dim}, bfloat16"
        print_result([asdict(prediction) for prediction in predictions], f"{title}\n{table(predictions)}", as_json)
