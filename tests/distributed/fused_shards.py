"""Two processes run sharded calls on the fused kernels beside the formula in one process.

They share the GPU where there is one; elsewhere the kernels run in Triton's interpreter. The messages are gloo's, or
NCCL's, which wants a GPU for each process.
"""

from __future__ import annotations

import json
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
        "places": (causal, {"position": rg.Alibi(), "places": places}),
        "vectors at places": (causal, {"position": rg.Shaw(table(HEADS, 9, DIM), 4), "places": places}),
    }


def run(tensors: list[Tensor], layout: Layout | None, **options: Any) -> list[Tensor]:
    """The output and the gradients of q, k and v, of the whole sequence on every rank."""
    leaves = [x.clone().requires_grad_() for x in tensors]
    if layout is None:
        output = rg.attend(*leaves, **options, backend="reference")
        output.square().sum().backward()
        return [output.detach(), *(x.grad for x in leaves if x.grad is not None)]
    part = rg.attend(*(layout.split(x) for x in leaves), **options, backend="triton", layout=layout)
    part.square().sum().backward()
    grads = [x.grad for x in leaves if x.grad is not None]
    for grad in grads:
        dist.all_reduce(grad)
    return [layout.gather(part.detach()), *grads]


def check(folder: Path, messages: str = "gloo") -> None:
    """The greatest error of each call, relative to each tensor."""
    dist.init_process_group(messages, timeout=timedelta(seconds=120))
    if messages == "nccl":
        torch.cuda.set_device(dist.get_rank())
    device, draw = "cuda" if torch.cuda.is_available() else "cpu", torch.Generator().manual_seed(0)
    tensors = [torch.randn(1, HEADS, TOKENS, DIM, generator=draw).to(device) for _ in range(3)]
    errors = {}
    for name, (mask, parts) in calls(device).items():
        whole = mask if "places" not in parts else parts["places"].place(mask)
        layout = rg.shard(whole, TOKENS, tile=4, strategy="equal runs")
        pairs = zip(run(tensors, layout, mask=mask, **parts), run(tensors, None, mask=mask, **parts), strict=True)
        errors[name] = max(float((x - y).abs().max() / y.abs().max()) for x, y in pairs)
    (folder / f"rank{dist.get_rank()}.json").write_text(json.dumps(errors))
    dist.barrier()
    dist.destroy_process_group()
