"""Runs the families of the installed transformers, tiny and random, with `attn_implementation="regard"` and eager.

    python benchmarks/transformers_sweep.py [FAMILY ...] [--kind text|vision|speech] [--missing] [--compile] [--write]

Text, vision and speech families are compared in their outputs (of text at real tokens, with padding on the right, on
the left, and without a mask) and in the gradients of all parameters; families that generate also in their tokens with
dynamic, static and sliding caches; `output_attentions` with eager's weights; with `--compile` also as a compiled graph.
A family in whose results noise in the attentions does not show is unclear.

Each family runs in a process of its own with a time limit. `--write` stores each result in
results/transformers_sweep.json as it comes, and then the pages docs/how-to/transformers-families.md and .zh.md from all
of them; `--missing` runs the families that have no stored result, so that a sweep can be continued. The run ends with
an error if a family differs.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import regard.integrations.transformers as integration
from regard.errors import RegardError
from tiny_models import KINDS, Family, TinyModel, call, list_families, tiny_model
from transformers_page import PAGES, write_page

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "transformers_sweep.json"
TOLERANCE = 1e-4
"""Of the largest output or gradient, in float32; a family beyond it is compared in float64, since models without norms
amplify rounding (MobileBERT)."""

SECONDS = 240  # for one family
NEW_TOKENS = 6
CACHES = ("dynamic", "static")


@dataclass(frozen=True)
class Row:
    """What became of one family.

    `status` is equal, refused, own (computes its attention itself), none (has no softmax), unclear (transformers' own
    implementations differ, or the attention does not show in the results), differs or untried. `error` is the largest
    difference, relative to the largest number; `reason` says why there is none. `reads` names the inputs. `caches` has
    a result by kind of cache, for families that generate; `weights` is that of `output_attentions`: each is "equal" or
    says why not. `compiled` is that of `torch.compile`: "one graph", "with breaks", or why not.
    """

    family: str
    kind: str
    model: str
    status: str
    error: float | None = None
    reason: str = ""
    reads: str = ""
    caches: dict[str, str] = field(default_factory=dict)
    weights: str = ""
    compiled: str = ""


def try_family(family: Family, compiles: bool = False) -> Row:
    """One family, beside eager."""
    row = Row(family.name, family.kind, family.model, "untried")
    try:
        tiny = tiny_model(family)
        row = replace(row, reads=", ".join(sorted({describe_input(name) for name in tiny.inputs[0]} - {""})))
        with SeesSoftmax() as seen:
            wanted = [run(tiny.model, "eager", inputs) for inputs in tiny.inputs]
    except Exception as error:
        return replace(row, reason=first_line(error))
    try:
        with CountCalls() as counted:
            ours = [run(tiny.model, "regard", inputs) for inputs in tiny.inputs]
    except RegardError as error:
        own = "compute their attention themselves" in str(error)
        return replace(row, status="own" if own else "refused", reason="" if own else first_line(error))
    except Exception as error:
        own = "does not support" in str(error) or fails(tiny, "sdpa")
        return replace(row, status="own" if own else "differs", reason=first_line(error))
    if not counted.calls:
        return replace(row, status="own" if seen.softmax else "none")
    if not perceives(tiny, ours):
        return replace(row, status="unclear", reason="noise in its attention changes nothing that it returns")
    error = max(difference(a, b) for a, b in zip(ours, wanted, strict=True))
    if not error <= TOLERANCE:
        error = compare(as_double(tiny))
    if not error <= TOLERANCE and not fails(tiny, "sdpa") and not compare(tiny, "sdpa") <= TOLERANCE:
        error = compare(tiny, other="sdpa")
        if not error <= TOLERANCE:
            return replace(row, status="unclear", reason="transformers' own sdpa differs from its eager too")
        row = replace(row, reason="to sdpa, from which eager differs")
    row = replace(row, status="equal" if error <= TOLERANCE else "differs", error=error)
    other = "sdpa" if row.reason else "eager"
    row = replace(row, weights=try_attentions(tiny) if other == "eager" else "", caches=try_caches(family, tiny, other))
    return replace(row, compiled=try_compile(tiny)) if compiles else row


def describe_input(name: str) -> str:
    """What a model reads under that name."""
    kinds = {"input_ids": "text", "pixel_values": "images", "pixel_values_videos": "videos"}
    kinds |= {"input_values": "waveforms", "input_features": "spectrograms", "grid_thw": "patches"}
    return kinds.get(name, "")


class SeesSoftmax(TorchDispatchMode):
    """While open, notes whether a softmax is computed."""

    softmax = False

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if "softmax" in function.name() or "scaled_dot_product" in function.name():
            self.softmax = True
        return function(*args, **(kwargs or {}))


class CountCalls:
    """While open, counts the attentions that Regard computes, and adds noise to them as large as they are if told."""

    def __init__(self, noise: bool = False):
        self.calls, self.noise = 0, noise

    def __enter__(self) -> CountCalls:
        self.attend = integration.attend
        integration.attend = self.count
        return self

    def count(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        output = self.attend(*args, **options)
        generator = torch.Generator().manual_seed(self.calls)
        if not self.noise:
            return output
        return output + torch.randn(output.shape, generator=generator).to(output) * output.detach().abs().mean()

    def __exit__(self, *error: object) -> None:
        integration.attend = self.attend


class Result(NamedTuple):
    """What a model returns (of text at real tokens), and the gradient of each parameter of a linear loss on it."""

    outputs: list[Tensor]
    gradients: list[Tensor]


def run(model: Any, implementation: str, inputs: dict[str, Tensor]) -> Result:
    """The result with one of the implementations of attention."""
    model.set_attn_implementation(implementation)
    return differentiate(model, lambda: call(model, inputs), inputs)


def differentiate(model: Any, forward: Callable[[], Any], inputs: dict[str, Tensor]) -> Result:
    """The result of a forward pass, with the gradients of a random linear loss."""
    model.zero_grad()
    outputs = read_outputs(forward(), inputs)
    generator = torch.Generator().manual_seed(2)
    loss = sum((x * torch.randn(x.shape, generator=generator, dtype=x.dtype)).sum() for x in outputs)
    if isinstance(loss, Tensor) and loss.requires_grad:
        loss.backward()
    gradients = [torch.zeros(()) if p.grad is None else p.grad.clone() for p in model.parameters()]
    return Result([x.detach() for x in outputs], gradients)


def read_outputs(output: Any, inputs: dict[str, Tensor]) -> list[Tensor]:
    """The numbers that a model returns (its logits alone, if it has any) in float64, at real tokens for padded text."""
    mask = inputs.get("attention_mask")
    real = lambda x: x[mask.bool()] if mask is not None and x.dim() > 2 and x.shape[:2] == mask.shape else x  # noqa: E731
    logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor) and mask is not None and logits.dim() == 3:
        return [real(logits).double()]
    skipped = ("past_key_values", "attentions", "hidden_states", "decoder_attentions", "cross_attentions")
    fields = (
        output.items() if hasattr(output, "items") else enumerate(output if isinstance(output, tuple) else [output])
    )
    leaves = [leaf for name, value in fields if name not in skipped for leaf in flatten(value)]
    found = [real(leaf).double() for leaf in leaves if leaf.is_floating_point() and leaf.numel()]
    if not found:
        raise ValueError("it returns no numbers for these inputs")
    return found


def flatten(value: Any) -> Iterable[Tensor]:
    """The tensors in a value."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from flatten(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from flatten(item)


def difference(ours: Result, theirs: Result) -> float:
    """The largest difference: of an output relative to its largest number, of gradients to the largest of them all."""
    errors = [largest_error(a, b) for a, b in zip(ours.outputs, theirs.outputs, strict=True)]
    largest = max((float(x.abs().max()) for x in theirs.gradients if x.numel()), default=0.0)
    errors += [largest_error(a, b, largest) for a, b in zip(ours.gradients, theirs.gradients, strict=True)]
    return float("nan") if any(error != error for error in errors) else max(errors)


def largest_error(actual: Tensor, expected: Tensor, scale: float = 0.0) -> float:
    """Relative to the largest finite number expected, or to `scale` if that is larger; infinities must be equal."""
    if not expected.numel():
        return 0.0
    unequal = torch.where(actual == expected, torch.zeros_like(expected), actual - expected)
    finite = torch.where(expected.isfinite(), expected, torch.zeros_like(expected))
    return float(unequal.abs().max()) / max(float(finite.abs().max()), scale, 1e-12)


def perceives(tiny: TinyModel, results: list[Result]) -> bool:
    """Whether noise in the attentions changes what the model returns; where it does not, equality says nothing."""
    with CountCalls(noise=True):
        noisy = run(tiny.model, "regard", tiny.inputs[0])
    return not difference(noisy, results[0]) <= 10 * TOLERANCE


def as_double(tiny: TinyModel) -> TinyModel:
    """A copy of the model and its inputs in float64."""
    batches = [{name: x.double() if x.is_floating_point() else x for name, x in one.items()} for one in tiny.inputs]
    model = copy.deepcopy(tiny.model).double()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # the grouped products have no float64
    return TinyModel(model, batches)


def compare(tiny: TinyModel, implementation: str = "regard", other: str = "eager") -> float:
    """The difference between two implementations over all inputs."""
    errors = [
        difference(run(tiny.model, implementation, inputs), run(tiny.model, other, inputs)) for inputs in tiny.inputs
    ]
    return float("nan") if any(error != error for error in errors) else max(errors)


def fails(tiny: TinyModel, implementation: str) -> bool:
    """Whether a model cannot run with an implementation."""
    try:
        run(tiny.model, implementation, tiny.inputs[0])
    except Exception:
        return True
    return False


def try_attentions(tiny: TinyModel) -> str:
    """The weights that come with `output_attentions=True`, of rows without padding."""
    verdict = compare_attentions(tiny)
    return compare_attentions(as_double(tiny)) if verdict.startswith("differ") else verdict


def compare_attentions(tiny: TinyModel) -> str:
    inputs = {name: x for name, x in tiny.inputs[0].items() if name != "attention_mask"}
    weights: dict[str, list[Tensor]] = {}
    for implementation in ("eager", "regard"):
        tiny.model.set_attn_implementation(implementation)
        try:
            with torch.no_grad():
                output = call(tiny.model, inputs, output_attentions=True)
        except Exception as error:
            return "" if implementation == "eager" else first_line(error)
        names = ("attentions", "decoder_attentions", "cross_attentions", "encoder_attentions")
        weights[implementation] = [x for name in names for x in flatten(getattr(output, name, None))]
    theirs, ours = weights["eager"], weights["regard"]
    if not theirs:
        return ""
    if len(ours) != len(theirs) or any(a.shape != b.shape for a, b in zip(ours, theirs, strict=True)):
        return f"{len(ours)} of {len(theirs)} weights"
    error = max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
    return "equal" if error <= TOLERANCE else f"differ by {error:.0e}"


def try_caches(family: Family, tiny: TinyModel, other: str) -> dict[str, str]:
    """Whether the tokens that each kind of cache generates are those of the other implementation."""
    if not tiny.model.can_generate() or "MASKED_LM" in family.model.upper():
        return {}
    results = {}
    for cache in CACHES:
        outcome = try_generation(tiny, cache, other)
        results |= {} if outcome is None else outcome
    return results


def try_generation(tiny: TinyModel, cache: str, other: str) -> dict[str, str] | None:
    """The result by kind of cache: this one, and "sliding" where a layer has a window; None if `other` fails."""
    inputs: dict[str, Any] = {name: x for name, x in tiny.inputs[-1].items() if name != "decoder_input_ids"}
    if "decoder_input_ids" in tiny.inputs[-1]:
        inputs["decoder_start_token_id"] = 1
    generated = {}
    for implementation in (other, "regard"):
        tiny.model.set_attn_implementation(implementation)
        torch.manual_seed(0)
        try:
            generated[implementation] = tiny.model.generate(
                **inputs,
                max_new_tokens=NEW_TOKENS,
                min_new_tokens=NEW_TOKENS,
                do_sample=False,
                cache_implementation=None if cache == "dynamic" else cache,  # the model's own, which is dynamic
                return_dict_in_generate=True,
            )
        except Exception as error:
            return None if implementation == other else {cache: first_line(error)}
    ours, theirs = generated["regard"], generated[other]
    verdict = "equal" if torch.equal(ours.sequences, theirs.sequences) else "other tokens"
    sliding = any(getattr(layer, "is_sliding", False) for layer in cache_layers(ours))
    return {cache: verdict, **({f"{cache} sliding": verdict} if sliding else {})}


def cache_layers(output: Any) -> list[Any]:
    """The layers of the cache that a generation ended with."""
    cache = getattr(output, "past_key_values", None)
    return list(getattr(getattr(cache, "self_attention_cache", cache), "layers", []))


def try_compile(tiny: TinyModel) -> str:
    """Forward and backward through `torch.compile`; where one graph is not possible, whether it is with eager."""
    inputs, model = tiny.inputs[0], tiny.model
    model.set_attn_implementation("regard")
    wanted = run(model, "regard", inputs)
    graph = "one graph"
    for fullgraph in (True, False):
        torch._dynamo.reset()
        try:
            ours = run_compiled(model, inputs, fullgraph)
        except Exception as error:
            if not fullgraph:
                return first_line(error)
            graph = "with breaks" if breaks_alone(model, inputs) else f"with breaks: {first_line(error)}"
            continue
        error = difference(ours, wanted)
        return graph if error <= TOLERANCE else f"differs by {error:.0e}"
    return graph


def run_compiled(model: Any, inputs: dict[str, Tensor], fullgraph: bool) -> Result:
    """The result of the compiled model. The backend leaves out the generation of code, which is not Regard's."""
    compiled = torch.compile(model.forward, fullgraph=fullgraph, backend="aot_eager")
    return differentiate(model, lambda: call(model, inputs, compiled), inputs)


def breaks_alone(model: Any, inputs: dict[str, Tensor]) -> bool:
    """Whether the model cannot be one graph with transformers' own attention either."""
    torch._dynamo.reset()
    model.set_attn_implementation("eager")
    try:
        run_compiled(model, inputs, fullgraph=True)
    except Exception:
        return True
    finally:
        model.set_attn_implementation("regard")
        torch._dynamo.reset()
    return False


def first_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:160]


def try_safely(family: Family, compiles: bool) -> Row:
    """`try_family`, or what it raised beyond what it expects."""
    try:
        return try_family(family, compiles)
    except Exception as error:
        return Row(family.name, family.kind, family.model, "differs", reason=first_line(error))


def run_apart(family: Family, compiles: bool = False, seconds: float = SECONDS) -> Row:
    """`try_family` in a process of its own, which may crash or be slow without ending the sweep."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=lambda: send.send(try_safely(family, compiles)))
    process.start()
    send.close()
    untried = Row(family.name, family.kind, family.model, "untried")
    try:
        if receive.poll(seconds):
            return receive.recv()
        return replace(untried, reason=f"it took more than {seconds:.0f} seconds")
    except EOFError:
        return replace(untried, reason="its process ended")
    finally:
        process.kill()
        process.join()


def load_rows() -> dict[str, Row]:
    """The stored results, by family."""
    stored = json.loads(RESULTS.read_text("utf8"))
    return {row["family"]: Row(**row) for row in stored["rows"]}


def store_rows(rows: dict[str, Row]) -> None:
    written = {"transformers": transformers.__version__, "rows": [asdict(rows[name]) for name in sorted(rows)]}
    RESULTS.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n", "utf8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--kind", choices=KINDS, action="append", default=[])
    parser.add_argument("--missing", action="store_true", help="only families without a stored result")
    parser.add_argument("--compile", action="store_true", help="also through torch.compile, which takes longer")
    parser.add_argument("--write", action="store_true", help="store the results and write the pages")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    every = list_families(*args.kind)
    unknown = [name for name in args.families if name not in every]
    if unknown:
        sys.exit(f"transformers {transformers.__version__} has no such family {unknown[0]!r}.")
    rows = load_rows() if RESULTS.exists() else {}
    names = [name for name in args.families or every if not (args.missing and name in rows)]
    for name in names:
        row = rows[name] = run_apart(every[name], args.compile)
        result = row.reason if row.error is None else f"{row.error:.0e}"
        print(f"{name:28} {row.status:8} {result} {row.caches or ''} {row.weights} {row.compiled}", flush=True)
        if args.write:
            store_rows(rows)
    if args.write:
        for language, path in PAGES.items():
            path.write_text(write_page(list(map(asdict, rows.values())), language, transformers.__version__), "utf8")
    wrong = [name for name in names if rows[name].status == "differs"]
    if wrong:
        sys.exit(f"different: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
