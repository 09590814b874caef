"""Watching leaves what each attention looked at, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import regard as rg
from regard import BadInput, Unsupported
from regard.models.config import EncoderDecoderConfig, SequenceConfig
from regard.models.heads import LMHeadConfig
from regard.nn import Attend, MultiHeadAttention, Stack, StackConfig
from regard.nn.embeddings.text import TextEmbeddingConfig
from regard.nn.graphs.attention import GraphAttention
from regard.nn.hooks.attentions import find_attentions, find_owner
from regard.nn.hooks.watch import watch
from regard.nn.sparse.longformer import LocalGlobal

CAUSAL = StackConfig(dim=12, layers=3, heads=4, kv_heads=2, mask="Causal()", position="Alibi()")


def decoder() -> nn.Module:
    config = SequenceConfig(TextEmbeddingConfig(vocabulary=19, dim=12), CAUSAL, head=LMHeadConfig(19, 12))
    return config.build().eval()


def hooks(model: nn.Module) -> int:
    return sum(len(attend._forward_hooks) for attend in find_attentions(model).values())


def test_each_attention_leaves_the_view_of_its_own_call() -> None:
    layer = MultiHeadAttention(12, 4, kv_heads=2, mask="Causal()", position="Alibi()")
    model, x = nn.Sequential(layer, nn.Linear(12, 5)), torch.randn(2, 7, 12)
    with watch(model, top=2, map=(2, 3), weights=True) as seen:
        model(x)
    q, k, v = (layer.split_heads(f(x), heads, None) for f, heads in ((layer.q, 4), (layer.k, 2), (layer.v, 2)))
    parts = {"position": rg.Alibi(), "mask": rg.Causal()}
    wanted = rg.look(q, k, v, **parts, top=2, map=(2, 3), weights=True)
    assert list(seen) == ["0"]
    for name in ("lse", "entropy", "distance", "peak", "received", "top_weights", "top_keys", "map", "weights"):
        assert torch.equal(getattr(seen["0"], name), getattr(wanted, name)), name
    assert not any(getattr(seen["0"], name).requires_grad for name in ("weights", "lse", "map"))


def test_names_are_those_of_the_owners_in_order() -> None:
    assert list(find_attentions(decoder())) == [f"stack.blocks.{n}.attention" for n in range(3)]
    both = LocalGlobal(8, 2, 4)
    assert list(find_attentions(nn.ModuleList([both]))) == ["0", "0.attend_global"]
    assert list(find_attentions(MultiHeadAttention(8, 2))) == ["attend"]
    model = nn.ModuleList([both])
    assert find_owner(model, "0") is both and find_owner(model, "0.attend_global") is both
    assert find_owner(both, "attend") is both


def test_a_pair_is_seen_with_its_memory() -> None:
    config = EncoderDecoderConfig(
        TextEmbeddingConfig(vocabulary=19, dim=12),
        StackConfig(dim=12, layers=1, heads=3),
        StackConfig(dim=12, layers=2, heads=2, mask="Causal()", cross=True),
        head=LMHeadConfig(19, 12),
    )
    model = config.build().eval()
    with watch(model) as seen:
        model(tokens=torch.randint(0, 19, (2, 7)), lengths=torch.tensor([7, 4]), targets=torch.randint(0, 19, (2, 3)))
    sizes = {name: (view.lse.shape[1], view.queries, view.keys) for name, view in seen.items()}
    assert sizes == {
        "stack.blocks.0.attention": (3, 7, 7),
        "decoder.blocks.0.attention": (2, 3, 3),
        "decoder.blocks.0.cross": (2, 3, 7),
        "decoder.blocks.1.attention": (2, 3, 3),
        "decoder.blocks.1.cross": (2, 3, 7),
    }
    assert seen["decoder.blocks.1.cross"].received[1, :, 4:].abs().max() == 0


def test_outputs_gradients_and_random_numbers_keep_their_bits() -> None:
    config = StackConfig(dim=12, layers=2, heads=4, attention_dropout=0.5, dropout=0.3)
    model, x = Stack(config).train(), torch.randn(2, 7, 12)
    actual = []
    for watched in (False, True):
        torch.manual_seed(5)
        model.zero_grad()
        if watched:
            with watch(model, top=3, map=2, weights=True):
                y = model(x)
                y.square().sum().backward()
        else:
            y = model(x)
            y.square().sum().backward()
        actual.append([y, torch.rand(3), *(p.grad for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*actual, strict=True))


def test_every_decoding_step_is_a_call() -> None:
    model, tokens = decoder(), torch.randint(0, 19, (2, 6))
    with watch(model) as seen:
        first = model(tokens=tokens[:, :4])
        second = model(tokens=tokens[:, 4:5], cache=first.cache)
        model(tokens=tokens[:, 5:], cache=second.cache)
    views = seen.calls("stack.blocks.2.attention")
    assert [(view.queries, view.keys) for view in views] == [(4, 4), (1, 5), (1, 6)]
    assert seen["stack.blocks.2.attention"] is views[-1]
    with watch(model) as whole:
        model(tokens=tokens)
    last = whole["stack.blocks.2.attention"].entropy[:, :, 5:]
    torch.testing.assert_close(views[-1].entropy, last, rtol=1e-4, atol=1e-5)


def test_hooks_go_when_it_closes_even_after_an_error() -> None:
    model = decoder()
    with watch(model):
        assert hooks(model) == 3
    with pytest.raises(ZeroDivisionError), watch(model):
        raise ZeroDivisionError
    assert hooks(model) == 0


def test_two_watches_at_once() -> None:
    model, tokens = decoder(), torch.randint(0, 19, (1, 4))
    with watch(model) as outer:
        model(tokens=tokens)
        with watch(model, weights=True) as inner:
            model(tokens=tokens)
        model(tokens=tokens)
    name = "stack.blocks.0.attention"
    assert (len(outer.calls(name)), len(inner.calls(name))) == (3, 1)
    assert outer[name].weights is None and inner[name].weights is not None


def test_a_pass_that_backward_repeats_is_no_call() -> None:
    layer, x = MultiHeadAttention(8, 2), torch.randn(1, 5, 8, requires_grad=True)
    with watch(layer) as seen:
        checkpoint(layer, x, use_reentrant=False).sum().backward()
    assert len(seen.calls("attend")) == 1


def test_graph_attention_is_watched_along_its_edges() -> None:
    layer = GraphAttention(dim_in=5, dim=8, heads=2, self_loops=False)
    with watch(layer, weights=True) as seen:
        layer(torch.randn(4, 5), torch.tensor([[0, 1, 2], [3, 3, 0]]))
    weights = seen["attend"].weights[0]
    assert (weights > 0).sum((0, 2)).tolist() == [2, 0, 0, 4]


def test_under_autocast_the_call_is_looked_at_in_its_type() -> None:
    layer, x = MultiHeadAttention(8, 2), torch.randn(1, 5, 8)
    with watch(layer, weights=True) as seen, torch.autocast("cpu", torch.bfloat16):
        layer(x)
    torch.testing.assert_close(seen["attend"].weights.sum(-1), torch.ones(1, 2, 5))


def test_it_prints_as_a_table() -> None:
    layer = MultiHeadAttention(8, 2, mask="Causal()")
    with watch(nn.Sequential(layer)) as seen:
        layer(torch.zeros(1, 2, 8))
    head, line = repr(seen).splitlines()
    assert head.split() == ["attention", "calls", "heads", "queries", "×", "keys", "entropy", "peak", "distance"]
    assert line.split() == ["0", "1", "2", "2", "×", "2", "0.347", "0.750", "0.250"]  # ln 2 / 2, (1 + ½) / 2, ½ / 2


def test_names_that_are_not_there() -> None:
    model = decoder()
    with watch(model) as seen:
        assert seen.get("stack.blocks.0.attention") is None and "stack.blocks.0.attention" not in seen
        with pytest.raises(BadInput, match="was not called"):
            seen["stack.blocks.0.attention"]
        with pytest.raises(BadInput, match=r"Did you mean 'stack\.blocks\.1\.attention'"):
            seen.calls("stack.block.1.attention")


@pytest.mark.parametrize(
    ("make", "options", "error", "words"),
    [
        (lambda: nn.Linear(2, 2), {}, BadInput, "no attention that goes through Regard"),
        (decoder, {"top": -1}, BadInput, "top is -1"),
        (decoder, {"map": (1, 2, 3)}, BadInput, "map is"),
        (lambda: torch.compile(decoder(), backend="eager"), {}, Unsupported, r"model\._orig_mod"),
    ],
)
def test_refusals(make, options: dict, error: type, words: str) -> None:
    with pytest.raises(error, match=words), watch(make(), **options):
        pass


def test_a_module_compiled_in_place_is_refused() -> None:
    model = decoder()
    model.stack.blocks[1].compile(backend="eager")
    with pytest.raises(Unsupported, match=r"stack\.blocks\.1 is compiled"), watch(model):
        pass


def test_a_method_that_forms_no_weights_is_refused_by_name() -> None:
    model = Stack(StackConfig(dim=8, layers=1, heads=2, method="Nystrom(landmarks=2)"))
    with pytest.raises(Unsupported, match=r"blocks\.0\.attention: Nystrom never forms"), watch(model):
        model(torch.randn(1, 6, 8))


def test_a_compiled_function_around_a_watched_model_is_seen() -> None:
    layer, x = MultiHeadAttention(8, 2), torch.randn(1, 5, 8)
    with watch(layer) as seen:
        torch.compile(lambda x: layer(x) * 2, backend="eager")(x)
    torch._dynamo.reset()
    assert seen["attend"].queries == 5


def test_attend_takes_its_arguments_by_name_too() -> None:
    attend, q = Attend(), torch.randn(1, 2, 3, 4)
    with watch(attend) as seen:
        attend(q=q, k=q, v=q, mask=rg.Causal())
    assert str(seen["attend"].mask) == "Causal()"
