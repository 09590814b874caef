"""The commands `regard serve` and `regard export`."""

import sys
from pathlib import Path
from typing import Annotated

from regard.terminal import Debug, Json, print_message, print_result, report_errors, typer


def serve(
    run: Annotated[Path, typer.Argument(help="Folder of a run, name of a shipped model, or a Hugging Face folder.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 8000,
    public: Annotated[bool, typer.Option("--public", help="Allow a --host that other machines can reach.")] = False,
    token: Annotated[
        str | None, typer.Option(envvar="REGARD_TOKEN", help="Bearer token that requests must send.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto (cuda where there is one).")] = "auto",
    max_batch: Annotated[int, typer.Option(min=1, help="Inputs that are predicted together at most.")] = 32,
    max_wait: Annotated[
        float, typer.Option(min=0, max=1000, help="Milliseconds that a batch waits for more inputs.")
    ] = 2.0,
    max_body: Annotated[float, typer.Option(min=0.001, help="Megabytes of a request's body.")] = 8.0,
    max_items: Annotated[int, typer.Option(min=1, help="Inputs of a request.")] = 256,
    max_characters: Annotated[int, typer.Option(min=1, help="Characters of a text.")] = 100_000,
    max_queue: Annotated[int, typer.Option(min=1, help="Inputs that may wait; more are answered with 429.")] = 1024,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds until an answer.")] = 60.0,
    log_format: Annotated[str, typer.Option("--log", help="Log of requests on stderr: text, json or none.")] = "text",
    metrics: Annotated[float, typer.Option(min=0.1, help="Seconds between lines of metrics in the log.")] = 60.0,
    changed: Annotated[list[str], typer.Option("--set", help="Change a setting: name=value. Can be repeated.")] = [],  # noqa: B006
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Serve a trained model over HTTP: POST /predict, GET /health, a page and /openapi.json.

    Prints the address first. SIGTERM and Ctrl-C stop it after the requests that it has accepted.
    """
    with report_errors(debug):
        import torch

        from regard import BadInput
        from regard.inference.predictor import open_predictor
        from regard.serve.limits import ServingLimits
        from regard.serve.server import check_host, make_log
        from regard.serve.server import serve as serve_model
        from regard.train.commands import parse_assignments

        check_host(host, public)
        if log_format not in ("text", "json", "none"):
            raise BadInput(f"--log is {log_format!r}; give text, json or none.")
        if token is not None and len(token) < 8:
            raise BadInput("The token is shorter than 8 characters. Give a longer one: openssl rand -hex 16.")
        predictor = open_predictor(run, parse_assignments(changed))
        device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        predictor.to(device)
        from regard.serve.app import ServerConfig

        limits = ServingLimits(int(max_body * (1 << 20)), max_items, max_characters, queue=max_queue, seconds=timeout)
        config = ServerConfig(limits, max_batch, max_wait / 1000, token, metrics_seconds=metrics)

        def announce(address: str) -> None:
            print_result({"address": address, "task": predictor.task.name}, address, as_json)
            sys.stdout.flush()
            if public:
                guard = "" if token else " and no token protects it"
                make_log(log_format if log_format == "json" else "text")(
                    {"event": "warning", "message": f"Warning: other machines can reach this server{guard}."}
                )
            print_message("Press Ctrl+C to stop the server.")

        serve_model(predictor, config, host, port, announce, log_format)  # type: ignore[arg-type]


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run, name of a shipped model, or a Hugging Face folder.")],
    out: Annotated[Path, typer.Option("--out", help="File: model.onnx, model.pt2; or a folder for huggingface.")],
    format: Annotated[str, typer.Option(help="onnx, torch or huggingface. Default: by the extension of --out.")] = "",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a trained model for other programs: ONNX, torch.export, or a folder that transformers reads."""
    with report_errors(debug):
        from regard.inference.predictor import export_predictor, open_predictor

        predictor = open_predictor(run)
        if format == "huggingface":
            predictor.save(out, format="huggingface")
            print_result({"folder": str(out)}, str(out), as_json)
            return
        result = export_predictor(predictor, out, format or None)  # type: ignore[arg-type]
        error = "not checked: onnxruntime is not installed" if result.error is None else f"{result.error:.1e}"
        document = {
            "file": str(result.file),
            "format": result.format,
            "inputs": result.inputs,
            "outputs": result.outputs,
            "dynamic": result.dynamic,
            "error": result.error,
        }
        lines = [f"file     {result.file}", f"inputs   {', '.join(result.inputs)}"]
        lines += [f"outputs  {', '.join(result.outputs)}", f"error    {error}"]
        print_result(document, "\n".join(lines), as_json)
