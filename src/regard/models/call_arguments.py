"""Arguments of a model's call: an input without a name, and names of other libraries, which are answered with ours."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from ..errors import BadInput
from ..nn.embeddings.embedding import Embedding

OTHER_NAMES = {
    "input_ids": "tokens=input_ids",
    "attention_mask": "lengths=attention_mask.sum(1), for padding at the end",
    "token_type_ids": "segments=token_type_ids",
    "global_attention_mask": "global_tokens=global_attention_mask.bool()",
    "pixel_values": "images=pixel_values",
    "pixel_mask": "sizes=, the height and width of each image",
    "input_features": "sound=input_features.transpose(1, 2)",
    "decoder_input_ids": "targets=decoder_input_ids",
    "decoder_attention_mask": "target_lengths=decoder_attention_mask.sum(1)",
    "past_key_values": "cache=, the cache of an earlier output",
    "use_cache": "nothing: decoders return a cache in evaluation",
    "output_attentions": "regard.watch(model) around the call",
    "output_hidden_states": "nothing: output.hidden is the last layer",
    "return_dict": "nothing: a model returns an Output",
    "edge_index": "edges=edge_index",
    "x": "nodes=x, or the input's own name",
}
"""Arguments of transformers and PyG, and what to give here instead."""


def resolve_arguments(model: nn.Module, inputs: Sequence[Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The named arguments of a call: one input without a name is the one that the model reads.

    Raises `BadInput` for several inputs without names, and for names of other libraries, with the name to use.
    """
    known = [name for name in inspect.signature(model.forward).parameters if name != "self"]
    foreign = [name for name in arguments if name in OTHER_NAMES and name not in known]
    if foreign:
        instead = "; ".join(f"instead of {name} give {OTHER_NAMES[name]}" for name in foreign)
        raise BadInput(
            f"{type(model).__name__} has no argument {foreign[0]!r}: {instead}. It takes {', '.join(known)}."
        )
    if not inputs:
        return dict(arguments)
    name = main_input(model)
    if len(inputs) > 1 or name is None or not isinstance(inputs[0], Tensor) or name in arguments:
        got = ", ".join(type(value).__name__ for value in inputs)
        example = name or known[0]
        raise BadInput(
            f"{type(model).__name__} got {got} without a name. Name the arguments: model({example}=...). It takes "
            f"{', '.join(known)}."
        )
    return {name: inputs[0], **arguments}


def main_input(model: nn.Module) -> str | None:
    """The input that a model reads, where there is only one: tokens, images or sound."""
    embed = dict(model.named_children()).get("embed")
    name = embed.reads if isinstance(embed, Embedding) else None
    return name if name in inspect.signature(model.forward).parameters else None
