"""One forward pass of a model, with the inputs and the output of each of its attentions.

The model runs unchanged. Memory is linear in the tokens: q, k, v, the output and the parts are stored, and everything
else is computed from these on request, a region at a time (`region.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...attention.parts.methods import Exact
from ...attention.parts.positions import Rotary
from ...errors import BadInput, RegardError, Unsupported
from ...models.config import EncoderDecoderConfig, SequenceConfig
from ...models.model import Model
from ...nn.attention import Attend
from ...nn.block import StackConfig
from ...nn.explain import output_projection
from ...nn.hooks.attentions import AttendCall, find_attentions, read_call
from ...nn.hooks.edit import HeadChanges, active_edits, edit
from ...nn.parts.rotary import RotarySpec
from ..inputs.model_input import InputMetadata, ModelInput, Token
from ..inputs.notices import Notice
from ..protocol import Json, Translated
from ..server.jobs import Job
from .captured_attention import CapturedAttention
from .predictions import PredictionFields

POOL = "pool"
"""The side of learned queries, such as those of a pooling head, which belong to no token."""


@dataclass(eq=False)
class Capture:
    """A forward pass: the tokens of each side, the attentions in the order they ran, and the prediction."""

    tokens: dict[str, list[Token]]
    attentions: list[CapturedAttention]
    prediction: PredictionFields
    metadata: InputMetadata
    logits: Tensor | None

    @property
    def bytes(self) -> int:
        return sum(attention.bytes for attention in self.attentions)

    @property
    def notices(self) -> list[Notice]:
        """What must be said of the input: see `inputs.notices`."""
        return self.metadata.get("notices", [])

    def attention(self, which: Json) -> CapturedAttention:
        """The attention of that number or name."""
        for n, attention in enumerate(self.attentions):
            if attention.name == which or (isinstance(which, int) and not isinstance(which, bool) and n == which):
                return attention
        raise BadInput(f"There are attentions 0 … {len(self.attentions) - 1}; got {which!r}.")

    def special(self, side: str) -> list[int]:
        """The positions of a side's special tokens."""
        return [n for n, token in enumerate(self.tokens.get(side, ())) if token.special]


def capture(model: nn.Module, prepared: ModelInput, edits: HeadChanges, job: Job, seed: int = 0) -> Capture:
    """Run the model once and record its attentions; `edits` are as `regard.edit` takes them."""
    attends = find_attentions(model)
    recorded: dict[str, CapturedAttention] = {}  # the last call of each
    calls = 0

    def recorder(name: str) -> Callable[..., None]:
        def hook(attend: Attend, args: tuple[Tensor, ...], kwargs: dict[str, object], output: Tensor) -> None:
            nonlocal calls
            calls += 1
            job.report(min(calls, len(attends)), len(attends), locate_attention(name, prepared.side).label)
            backend = str(kwargs.get("backend", "auto"))
            recorded[name] = record_call(model, name, attend, read_call(args, kwargs), output, prepared.side, backend)

        return hook

    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        for name, attend in attends.items():
            handle = attend.register_forward_hook(recorder(name), with_kwargs=True)
            stack.callback(handle.remove)
        if edits:
            stack.enter_context(edit(model, edits, generator=torch.Generator().manual_seed(seed)))
        job.check_cancelled()
        output = model(**prepared.arguments)
    attentions, tokens = list(recorded.values()), prepared.tokens
    pooling = max((attention.queries for attention in attentions if attention.query_side == POOL), default=0)
    if pooling:
        tokens = tokens | {POOL: [Token("[pool]", special=True)] * pooling}
    return Capture(tokens, attentions, prepared.read_output(output), prepared.metadata, output.logits)


def record_call(
    model: nn.Module, name: str, attend: Attend, call: AttendCall, output: Tensor, side: str, backend: str = "auto"
) -> CapturedAttention:
    """The record of one call of an attention."""
    if not isinstance(call.parts.method, Exact):
        raise Unsupported(
            f"{name} uses {call.parts.method}, which computes no weight matrix, so there is nothing to show."
        )
    if call.q.shape[0] != 1:
        raise Unsupported(f"{name} ran with a batch of {call.q.shape[0]}; the lab shows one input at a time.")
    edits = {
        head: used if isinstance(used, str) else used[0]
        for head, used in active_edits(attend).items()
        if used is not None
    }
    place = locate_attention(name, side)
    q, k, v, out = (x.detach()[0] for x in (call.q, call.k, call.v, output))
    return CapturedAttention(
        name,
        place.label,
        place.layer,
        place.role,
        place.query_side,
        place.key_side,
        q,
        k,
        v,
        out,
        call.parts,
        edits,
        projected_value_norms(model, name, q, v),
        rotary_text(model) if place.role == "self" else None,
        backend,
    )


class AttentionPlace(NamedTuple):
    """Where an attention is in its model, and what attends to what in it."""

    layer: int
    label: Translated
    role: str
    query_side: str
    key_side: str


def locate_attention(name: str, input_side: str) -> AttentionPlace:
    """The place of an attention, from its name and the side that the model reads."""
    layer = next((int(part) for part in name.split(".") if part.isdigit()), 0)
    cross = name.rpartition(".")[2].startswith("cross") or name == "decoder.look"
    front = name.split(".")[0]
    side = {"decoder": "target", "image": "image", "text": "source"}.get(front, input_side)
    if front == "head":  # a learned query of the head attends to all tokens
        return AttentionPlace(layer, {"en": "pooling attention", "zh": "池化注意力"}, "cross", POOL, side)
    tower = {"decoder": ("decoder", "解码器"), "image": ("image", "图像")}.get(front)
    role = ("cross-attention", "交叉注意力") if cross else ("self-attention", "自注意力")
    suffix = re.search(r"attend_(\w+)$", name)
    label = {
        language: " · ".join([*([tower[n]] if tower else []), number, role[n], *([suffix[1]] if suffix else [])])
        for n, (language, number) in enumerate((("en", f"layer {layer}"), ("zh", f"第 {layer} 层")))
    }
    return AttentionPlace(layer, label, "cross" if cross else "self", side, input_side if cross else side)


def rotary_text(model: nn.Module) -> str | None:
    """The rotary position that the layers apply to q and k themselves, as text; None where there is none."""
    config = model.config if isinstance(model, Model) else None
    stack = config.stack if isinstance(config, SequenceConfig | EncoderDecoderConfig) else None
    position = stack.position if isinstance(stack, StackConfig) else None
    return str(position) if isinstance(position, Rotary | RotarySpec) else None


def projected_value_norms(model: nn.Module, name: str, q: Tensor, v: Tensor) -> Tensor | None:
    """‖v_j W_h‖ of each head and key, `[heads, keys]`, W_h the part of the output projection that reads head h."""
    try:
        projection = output_projection(model, name).detach()
    except (RegardError, AttributeError):
        return None
    heads, width = q.shape[0], v.shape[2]
    if projection.dim() != 2 or projection.shape[1] != heads * width:
        return None
    values = v.float().repeat_interleave(heads // v.shape[0], dim=0)
    by_head = projection.float().unflatten(1, (heads, width)).permute(1, 2, 0)  # [heads, value dim, dim]
    if v.shape[1] * projection.shape[0] > 1 << 24:
        by_head = torch.linalg.qr(by_head.mT, mode="r").R.mT
    return (values @ by_head).norm(dim=-1)
