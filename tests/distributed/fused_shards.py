"""Two processes run sharded calls on the fused kernels beside the formula in one process: outputs and all gradients.

They share the GPU where there is one; elsewhere the kernels run in Triton's interpreter. The messages are gloo's, or
NCCL's, which wants a GPU for each process.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import regard as rg
from regard.distributed import Layout

TOKENS, HEADS, DIM = 37, 2, 16


def calls(device: str) -> dict[str, tuple[rg.Mask, dict[str, Any]]]:
    """Parts by name; the kinds of call that have a mask in common come one after another."""
    draw = torch.Generator().manual_seed(1)
    table = lambda *size: torch.randn(*size, generator=draw).to(device)  # noqa: E731
    causal, window = rg.Causal(), rg.Window(7, 3) | rg.Global(2)
    places = rg.Places(torch.arange(TOKENS, device=device) * 5 // 3)
    return {
        "dot": (causal, {}),
        "another scale": (causal, {"score": rg.Dot(scale=0.7)}),
        "a cap": (causal, {"score": rg.Dot(cap=2.0)}),
        "additive": (causal, {"score": rg.Additive(table(HEADS, DIM))}),
        "ALiBi": (causal, {"position": rg.Alibi()}),
        "vectors": (causal, {"position": rg.Shaw(table(HEADS, 9, DIM), 4)}),
        "additive rows": (window, {"score": rg.Additive(table(HEADS, DIM))}),
        "global rows": (window, {"position": rg.Bias(table(HEADS, 11), 5)}),
        "pairs": (window, {"bias": rg.PairBias(table(HEADS, TOKENS, TOKENS))}),
        "pairs by query": (window, {"bias": rg.PairBias(table(TOKENS, 1)), "sink": rg.Sink(table(HEADS))}),
        "pairs by key": (window, {"bias": rg.PairBias(table(HEADS, 1, TOKENS)), "sink": rg.Sink(table(HEADS))}),
        "a number a head": (window, {"bias": rg.PairBias(table(HEADS, 1, 1)), "sink": rg.Sink(table(HEADS))}),
        "places": (causal, {"position": rg.Alibi(), "places": places}),
        "vectors at places": (causal, {"position": rg.Shaw(table(HEADS, 9, DIM), 4), "places": places}),
    }


def run(tensors: list[Tensor], layout: Layout | None, parts: dict[str, Any], mask: rg.Mask) -> dict[str, Tensor]:
    """The output and the gradients of q, k and v and of the parts' own tensors, of the whole on every rank."""
    q, k, v = leaves = [x.clone().requires_grad_() for x in tensors]
    flow = ((torch.arange(q.numel(), device=q.device) % 33 - 16) / 8).to(q.dtype).view_as(q)  # exact in all types
    options = parts | {name: learned(part) for name, part in parts.items() if not isinstance(part, rg.Places)}
    if layout is None:
        output = rg.attend(q, k, v, mask=mask, **options, backend="reference")
        output.backward(flow)
    else:
        part = rg.attend(*(layout.split(x) for x in leaves), mask=mask, **options, backend="triton", layout=layout)
        part.backward(layout.split(flow))
        output = layout.gather(part.detach())
        for x in leaves:  # each rank has the gradient of its own tokens
            dist.all_reduce(x.grad)
    named = dict(zip("qkv", leaves, strict=True))
    for name, part in options.items():
        named |= {f"{name}.{own}": x for own, x in part.tensors().items() if x.requires_grad}
    return {"output": output.detach()} | {name: x.grad for name, x in named.items() if x.grad is not None}


def learned(part: Any) -> Any:
    """The part with its floating tensors as new leaves."""
    floating = {name: x for name, x in part.tensors().items() if x.is_floating_point()}
    return replace(part, **{name: x.clone().requires_grad_() for name, x in floating.items()})


def half_sink_error(tensors: list[Tensor]) -> float:
    """The error of a sink's gradient in float16, which sums what rounding of the weights would leave."""
    mask, sink = rg.Causal(), rg.Sink(torch.linspace(-1.0, 1.0, HEADS, device=tensors[0].device))
    layout = rg.shard(mask, TOKENS, tile=4, strategy="equal runs")
    sharded = run(tensors, layout, {"sink": sink}, mask)["sink.logits"]
    truth = run([x.double() for x in tensors], None, {"sink": sink}, mask)["sink.logits"]
    return float((sharded - truth).abs().max() / truth.abs().max())


def check(folder: Path, messages: str = "gloo") -> None:
    """The greatest error of each tensor of each call, relative to the tensor."""
    dist.init_process_group(messages, timeout=timedelta(seconds=120))
    if messages == "nccl":
        torch.cuda.set_device(dist.get_rank())
    device, draw = "cuda" if torch.cuda.is_available() else "cpu", torch.Generator().manual_seed(0)
    tensors = [torch.randn(1, HEADS, TOKENS, DIM, generator=draw).to(device) for _ in range(3)]
    errors = {}
    for name, (mask, parts) in calls(device).items():
        whole = mask if "places" not in parts else parts["places"].place(mask)
        layout = rg.shard(whole, TOKENS, tile=4, strategy="equal runs")
        sharded, whole_results = run(tensors, layout, parts, mask), run(tensors, None, parts, mask)
        assert sharded.keys() == whole_results.keys()
        for tensor, y in whole_results.items():
            errors[f"{name}: {tensor}"] = float((sharded[tensor] - y).abs().max() / y.abs().max())
    errors["a sink in float16: sink.logits"] = half_sink_error([x.half() for x in tensors])
    (folder / f"rank{dist.get_rank()}.json").write_text(json.dumps(errors))
    dist.barrier()
    dist.destroy_process_group()
