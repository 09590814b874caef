"""Two processes run a tiny Llama and a tiny Mistral of transformers on one sequence, beside one process."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

import regard as rg
import regard.integrations.transformers
from regard.distributed import Layout

SIZES = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2} | {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "attn_implementation": "regard",
}
TOKENS = 61
MODELS = {
    "llama": (lambda: LlamaForCausalLM(LlamaConfig(**SIZES)), rg.Causal(), "zigzag"),
    "mistral": (
        lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=9)),
        rg.Causal() & rg.Window(8),
        "auto",
    ),
}


def compare(name: str) -> dict[str, float | str]:
    """The greatest error of the loss, of a gradient and of a padded output."""
    make, mask, strategy = MODELS[name]
    torch.manual_seed(0)
    model: nn.Module = make().double()
    ids = torch.randint(0, 50, (2, TOKENS))
    labels = torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-100)
    layout = rg.shard(mask, TOKENS, strategy=strategy, tile=4)

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / ids.numel()

    with layout:
        logits = model(input_ids=layout.split(ids, 1), position_ids=layout.places()[None], use_cache=False).logits
        total = loss(logits, layout.split(labels, 1))
        total.backward()
    total = total.detach()
    dist.all_reduce(total)
    grads = {key: x.grad for key, x in model.named_parameters()}
    for grad in grads.values():
        dist.all_reduce(grad)
    model.zero_grad()
    whole = loss(model(input_ids=ids, use_cache=False).logits, labels)
    whole.backward()
    worst = max(float((x.grad - grads[key]).abs().max()) for key, x in model.named_parameters())
    real = torch.ones(2, TOKENS, dtype=torch.long)
    real[1, 40:] = 0
    positions = layout.places()[None]
    with layout, torch.no_grad():
        padded = model(input_ids=layout.split(ids, 1), position_ids=positions, attention_mask=real, use_cache=False)
    with torch.no_grad():
        single = model(input_ids=ids, attention_mask=real, use_cache=False).logits
    difference = (padded.logits - layout.split(single, 1)).abs() * layout.split(real, 1)[..., None]
    return {"loss": float((total - whole.detach()).abs()), "gradient": worst, "padded": float(difference.max())}


def refusals(layout: Layout) -> dict[str, str]:
    """What every rank says where one of them calls a model wrongly; none may wait for another."""
    llama, rank = MODELS["llama"][0](), dist.get_rank()
    ids, real = torch.randint(0, 50, (1, TOKENS)), torch.ones(1, TOKENS, dtype=torch.long)
    own = {"input_ids": layout.split(ids, 1), "position_ids": layout.places()[None], "use_cache": False}
    fewer = {name: x[:, :-1] if isinstance(x, Tensor) else x for name, x in own.items()}
    gpt = rg.models.gpt2(vocabulary=50, positions=TOKENS, dim=16, layers=1, heads=2).build()
    calls = {  # rank 0 has the first tokens, whose positions are the default
        "no positions": lambda: llama(input_ids=own["input_ids"], use_cache=False),
        "positions": lambda: llama(**own | {"position_ids": own["position_ids"] + (rank == 1)}, attention_mask=real),
        "padding": lambda: llama(**own, attention_mask=real[:, : TOKENS - (rank == 0)]),
        "tokens": lambda: llama(**(fewer if rank == 1 else own)),
        "tokens of ours": lambda: gpt(tokens=(fewer if rank == 0 else own)["input_ids"]),
    }
    said = {}
    for name, call in calls.items():
        try:
            with layout, torch.no_grad():
                call()
            said[name] = "nothing"
        except rg.BadInput as error:
            said[name] = str(error)
    return said


def check(folder: Path) -> None:
    """What every process does."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    found: dict[str, object] = {name: compare(name) for name in MODELS}
    found["refusals"] = refusals(rg.shard(rg.Causal(), TOKENS, strategy="equal runs"))
    (folder / f"rank{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
