"""LoRA: layers, training, and the adapters of peft."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import regard as rg
from regard.models.checkpoint.adapter import load_adapter, merge_lora, save_adapter
from regard.models.families.bert import bert
from regard.models.families.gpt2 import gpt2
from regard.nn.lora import LoraLinear, add_lora, lora_layers, merged_lora

TOKENS = torch.tensor([[2, 5, 7, 3], [2, 8, 9, 3]])


def tiny_bert() -> rg.models.Model:  # type: ignore[name-defined]
    torch.manual_seed(0)
    return bert(layers=2, dim=12, heads=3, hidden=20, vocabulary=11, positions=8, dropout=0.0).build().eval()


def randomize(model: nn.Module) -> None:
    """Give the second matrices, which start at zero, other values."""
    generator = torch.Generator().manual_seed(1)
    for layer in lora_layers(model).values():
        layer.lora_b.data.normal_(generator=generator)


def test_layer_starts_as_it_was_and_learns_two_matrices() -> None:
    torch.manual_seed(0)
    plain, x = nn.Linear(5, 7), torch.randn(3, 5)
    layer = LoraLinear.from_linear(plain, rank=2, alpha=6.0)
    assert torch.equal(layer(x), plain(x))
    layer.lora_b.data.normal_()
    expected = plain(x) + 3.0 * x @ layer.lora_a.t() @ layer.lora_b.t()
    torch.testing.assert_close(layer(x), expected)
    layer(x).sum().backward()
    assert plain.weight.grad is None and layer.lora_a.grad is not None and layer.lora_b.grad is not None
    torch.testing.assert_close(layer.merge()(x), layer(x))


def test_only_lora_and_head_are_trained() -> None:
    model = tiny_bert()
    paths = add_lora(model, 2, None, ("q", "down"))
    assert len(paths) == 4 and all(path.endswith((".q", ".down")) for path in paths)
    assert {name.rpartition(".")[2] for name, p in model.named_parameters() if p.requires_grad} == {"lora_a", "lora_b"}
    with pytest.raises(rg.BadInput, match="linear layers here are down, k, out, q, up, v"):
        add_lora(tiny_bert(), 2, None, ("gate",))


def test_merged_model_computes_the_same_and_is_put_back() -> None:
    model = tiny_bert()
    add_lora(model, 2, 8.0, ("all",))
    randomize(model)
    before, names = model(tokens=TOKENS).hidden, list(model.state_dict())
    with merged_lora(model) as merged:
        assert not lora_layers(merged) and list(merged.state_dict()) == list(tiny_bert().state_dict())
        torch.testing.assert_close(merged(tokens=TOKENS).hidden, before)
    assert list(model.state_dict()) == names and torch.equal(model(tokens=TOKENS).hidden, before)


def test_adapter_is_saved_under_their_names_and_read_again(tmp_path: Path) -> None:
    model = tiny_bert()
    add_lora(model, 2, 8.0, ("q", "v"))
    randomize(model)
    save_adapter(model, tmp_path, "some/bert")
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (2, 8.0, ["query", "value"])
    other = load_adapter(tiny_bert(), tmp_path)
    torch.testing.assert_close(other(tokens=TOKENS).hidden, model(tokens=TOKENS).hidden)
    torch.testing.assert_close(merge_lora(other)(tokens=TOKENS).hidden, model(tokens=TOKENS).hidden)


def test_layers_that_they_fuse_keep_our_names(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = gpt2(layers=1, dim=12, heads=3, vocabulary=11, positions=8).build()
    add_lora(model, 2, None, ("q", "v"))
    save_adapter(model, tmp_path, "some/gpt2")
    assert json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"] == ["q", "v"]
    load_adapter(gpt2(layers=1, dim=12, heads=3, vocabulary=11, positions=8).build(), tmp_path)


def test_adapter_of_another_model_or_kind_is_refused(tmp_path: Path) -> None:
    model = tiny_bert()
    add_lora(model, 2, None, ("q",))
    save_adapter(model, tmp_path, "some/bert")
    one = bert(layers=1, dim=12, heads=3, hidden=20, vocabulary=11, positions=8).build()
    with pytest.raises(rg.BadInput, match=r"no layer 'encoder\.layer\.1"):
        load_adapter(one, tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "IA3"}')
    with pytest.raises(rg.Unsupported, match="type 'IA3'"):
        load_adapter(tiny_bert(), tmp_path)


def test_adapters_are_exchanged_with_peft(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    from transformers import BertModel

    model = tiny_bert()
    model.save(tmp_path / "bert", format="huggingface")
    add_lora(model, 2, 8.0, ("q", "v", "up"))
    randomize(model)
    save_adapter(model, tmp_path / "adapter", str(tmp_path / "bert"))
    theirs = peft.PeftModel.from_pretrained(BertModel.from_pretrained(tmp_path / "bert"), tmp_path / "adapter").eval()
    torch.testing.assert_close(theirs(TOKENS).last_hidden_state, model(tokens=TOKENS).hidden, atol=1e-5, rtol=1e-5)
    config = peft.LoraConfig(r=3, lora_alpha=5, target_modules=["key", "output.dense"], init_lora_weights=False)
    other = peft.get_peft_model(BertModel.from_pretrained(tmp_path / "bert"), config).eval()
    other.save_pretrained(tmp_path / "other")
    ours = load_adapter(tiny_bert(), tmp_path / "other")
    torch.testing.assert_close(ours(tokens=TOKENS).hidden, other(TOKENS).last_hidden_state, atol=1e-5, rtol=1e-5)
