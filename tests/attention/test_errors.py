"""Every wrong call raises the right class with a message that names what was given; empty and extreme calls work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import regard as rg

BATCH, HEADS, QUERIES, KEYS, DIM = 2, 4, 5, 7, 6
BACKENDS = ["reference", "blockwise", "sdpa", "edges"]


def tensors(**other: Any) -> dict[str, Any]:
    """q, k, v that fit, or others in their place."""
    fit = {
        "q": torch.randn(BATCH, HEADS, QUERIES, DIM),
        "k": torch.randn(BATCH, 2, KEYS, DIM),
        "v": torch.randn(BATCH, 2, KEYS, 3),
    }
    return fit | other


def assert_refused(kind: type[Exception], words: list[str], call: Callable[[], object]) -> None:
    """Assert that the call raises exactly this class, with a message of whole sentences that has every word."""
    with pytest.raises(rg.RegardError) as caught:
        call()
    message = str(caught.value)
    assert caught.type is kind, f"{caught.type.__name__}, not {kind.__name__}: {message}"
    missing = [word for word in words if word not in message]
    assert not missing, f"{missing} not in: {message}"
    assert message[0].isupper() or message[0].isalpha(), message
    assert message.endswith("."), message


SHAPES = {
    "q of three dimensions": ({"q": torch.randn(4, 5, 6)}, ["q", "[4, 5, 6]", "[batch, heads, tokens, head_dim]"]),
    "k of two dimensions": ({"k": torch.randn(7, 6)}, ["k", "[7, 6]"]),
    "v of five dimensions": ({"v": torch.randn(1, 2, 2, 7, 3)}, ["v", "[1, 2, 2, 7, 3]"]),
    "batch of k": ({"k": torch.randn(3, 2, 7, 6)}, ["batch", "[2, 4, 5, 6]", "[3, 2, 7, 6]"]),
    "batch of v": ({"v": torch.randn(1, 2, 7, 3)}, ["batch", "[1, 2, 7, 3]"]),
    "heads that do not divide": (
        {"k": torch.randn(2, 3, 7, 6), "v": torch.randn(2, 3, 7, 3)},
        ["heads", "[2, 4, 5, 6]", "[2, 3, 7, 6]"],
    ),
    "fewer query heads": (
        {"k": torch.randn(2, 8, 7, 6), "v": torch.randn(2, 8, 7, 3)},
        ["heads", "[2, 4, 5, 6]", "[2, 8, 7, 6]"],
    ),
    "no key heads": ({"k": torch.randn(2, 0, 7, 6), "v": torch.randn(2, 0, 7, 3)}, ["heads", "[2, 0, 7, 6]"]),
    "heads of v": ({"v": torch.randn(2, 4, 7, 3)}, ["heads", "[2, 2, 7, 6]", "[2, 4, 7, 3]"]),
    "keys of v": ({"v": torch.randn(2, 2, 8, 3)}, ["keys", "[2, 2, 7, 6]", "[2, 2, 8, 3]"]),
    "head_dim": ({"k": torch.randn(2, 2, 7, 5)}, ["head_dim", "6", "5", "Bilinear"]),
    "no head_dim": ({"q": torch.randn(2, 4, 5, 0), "k": torch.randn(2, 2, 7, 0)}, ["head_dim", "[2, 4, 5, 0]"]),
    "whole numbers": ({"q": torch.ones(2, 4, 5, 6, dtype=torch.int64)}, ["q", "torch.int64", "float32"]),
    "booleans": ({"v": torch.ones(2, 2, 7, 3, dtype=torch.bool)}, ["v", "torch.bool"]),
    "complex": ({"k": torch.randn(2, 2, 7, 6, dtype=torch.complex64)}, ["k", "torch.complex64"]),
    "mixed types": ({"v": torch.randn(2, 2, 7, 3, dtype=torch.float64)}, ["torch.float32", "torch.float64"]),
    "half and single": ({"q": torch.randn(2, 4, 5, 6).half()}, ["torch.float16", "torch.float32"]),
    "a list": ({"q": [[1.0]]}, ["q", "list", "tensor"]),
    "nothing": ({"k": None}, ["k", "NoneType", "tensor"]),
    "q elsewhere": ({"q": torch.empty(2, 4, 5, 6, device="meta")}, ["meta", "cpu", ".to("]),
    "k elsewhere": ({"k": torch.empty(2, 2, 7, 6, device="meta")}, ["k", "meta", "cpu", ".to("]),
    "v elsewhere": ({"v": torch.empty(2, 2, 7, 3, device="meta")}, ["v", "meta", "cpu", ".to("]),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("function", [rg.attend, rg.look, rg.plan])
def test_tensors_that_do_not_fit(name: str, function: Callable[..., object]) -> None:
    other, words = SHAPES[name]
    assert_refused(rg.BadInput, words, lambda: function(**tensors(**other)))


T = torch.ones
LONG = torch.int64
MASKS: dict[str, tuple[Callable[[], rg.Mask | Any], list[str]]] = {
    "Lengths of another batch": (lambda: rg.Lengths(T(3, dtype=LONG)), ["Lengths", "[3]", "2"]),
    "Lengths' queries of another batch": (
        lambda: rg.Lengths(T(2, dtype=LONG), T(3, dtype=LONG)),
        ["Lengths", "queries", "[3]", "2"],
    ),
    "Documents of other keys": (lambda: rg.Documents(T(2, 5, dtype=LONG)), ["Documents", "[2, 5]", "[2, 7]"]),
    "Documents of another batch": (lambda: rg.Documents(T(1, 7, dtype=LONG)), ["Documents", "[1, 7]", "[2, 7]"]),
    "Documents' queries": (
        lambda: rg.Documents(T(2, 7, dtype=LONG), T(2, 7, dtype=LONG)),
        ["query_ids", "[2, 7]", "[2, 5]"],
    ),
    "Global of other keys": (lambda: rg.Global(T(2, 5, dtype=torch.bool)), ["Global", "[2, 5]", "[2, 7]"]),
    "Global of another batch": (lambda: rg.Global(T(3, 7, dtype=torch.bool)), ["Global", "[3, 7]", "[2, 7]"]),
    "Global beyond the keys": (lambda: rg.Global((1, 7)), ["Global", "7", "6"]),
    "Global beyond the keys, a tensor": (lambda: rg.Global(torch.tensor([9])), ["Global", "9", "6"]),
    "Global before the keys": (lambda: rg.Global(torch.tensor([-1, 3])), ["Global", "-1", "6"]),
    "Pairs of other sizes": (lambda: rg.Pairs(T(7, 5, dtype=torch.bool)), ["Pairs", "[7, 5]", "[2, 4, 5, 7]"]),
    "Pairs of other heads": (lambda: rg.Pairs(T(3, 5, 7, dtype=torch.bool)), ["Pairs", "[3, 5, 7]", "4"]),
    "Pairs of another batch": (lambda: rg.Pairs(T(3, 1, 5, 7, dtype=torch.bool)), ["Pairs", "[3, 1, 5, 7]", "2"]),
    "Blocks of other sizes": (lambda: rg.Blocks(T(2, 2, dtype=torch.bool), 3), ["Blocks", "[2, 2]", "2, 3"]),
    "Blocks of other heads": (lambda: rg.Blocks(T(3, 2, 3, dtype=torch.bool), 3), ["Blocks", "[3, 2, 3]", "4"]),
    "Blocks of another batch": (lambda: rg.Blocks(T(3, 1, 2, 3, dtype=torch.bool), 3), ["Blocks", "[3, 1, 2, 3]", "2"]),
    "Edges from beyond the keys": (lambda: rg.Edges(torch.tensor([[0, 7], [0, 1]])), ["sources", "7", "keys"]),
    "Edges to beyond the queries": (lambda: rg.Edges(torch.tensor([[0, 1], [0, 5]])), ["targets", "5", "queries"]),
    "Edges from before the keys": (lambda: rg.Edges(torch.tensor([[0, -1], [0, 1]])), ["sources", "-1", "keys"]),
    "Edges to before the queries": (lambda: rg.Edges(torch.tensor([[0, 1], [-2, 1]])), ["targets", "-2", "queries"]),
    "one of two": (lambda: rg.Causal() & (rg.Window(3) | ~rg.Lengths(T(3, dtype=LONG))), ["Lengths", "[3]"]),
    "a boolean tensor": (lambda: T(5, 7, dtype=torch.bool), ["mask", "Mask", "Pairs"]),
    "an added tensor": (lambda: torch.zeros(5, 7), ["mask", "Mask"]),
    "a class": (lambda: rg.Causal, ["mask", "Causal", "Causal(...)"]),
    "a name": (lambda: "causal", ["mask", "'causal'", "Mask"]),
    "a position": (lambda: rg.Alibi(), ["mask", "Alibi", "Mask"]),
    "a mask without allow": (type("Silent", (rg.Mask,), {}), ["Silent", "allow"]),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("function", [rg.attend, rg.look])
def test_masks_that_do_not_fit(name: str, function: Callable[..., object]) -> None:
    make, words = MASKS[name]
    assert_refused(rg.BadInput, words, lambda: function(**tensors(), mask=make()))


def test_documents_of_more_queries_than_keys() -> None:
    q, ids = torch.randn(2, 4, 9, 6), T(2, 7, dtype=LONG)
    assert_refused(
        rg.BadInput, ["Documents", "9", "7", "query_ids"], lambda: rg.attend(**tensors(q=q), mask=rg.Documents(ids))
    )


MAKING: dict[str, tuple[Callable[[], object], list[str]]] = {
    "Window before": (lambda: rg.Window(-1), ["Window", "before", "-1"]),
    "Window after": (lambda: rg.Window(1, -2), ["Window", "after", "-2"]),
    "Window of a fraction": (lambda: rg.Window(1.5), ["Window", "1.5"]),
    "Window of a boolean": (lambda: rg.Window(True), ["Window", "True"]),
    "Window of a tensor": (lambda: rg.Window(torch.tensor(3)), ["Window", "3"]),
    "Dilated step": (lambda: rg.Dilated(1, 1, 0), ["Dilated", "step", "0"]),
    "Dilated before": (lambda: rg.Dilated(-1, 1, 2), ["Dilated", "before", "-1"]),
    "Dilated after": (lambda: rg.Dilated(1, -1, 2), ["Dilated", "after", "-1"]),
    "Global count": (lambda: rg.Global(-1), ["Global", "-1"]),
    "Global index": (lambda: rg.Global((0, -3)), ["Global", "-3"]),
    "Global fractions": (lambda: rg.Global(torch.tensor([0.5])), ["Global", "torch.float32"]),
    "Global boolean of one dimension": (lambda: rg.Global(T(7, dtype=torch.bool)), ["Global", "[7]", "[batch, keys]"]),
    "Global of a word": (lambda: rg.Global("cls"), ["Global", "'cls'"]),
    "RandomBlocks block": (lambda: rg.RandomBlocks(0, 1), ["RandomBlocks", "block", "0"]),
    "RandomBlocks count": (lambda: rg.RandomBlocks(4, -1), ["RandomBlocks", "count", "-1"]),
    "RandomBlocks seed": (lambda: rg.RandomBlocks(4, 1, -5), ["RandomBlocks", "seed", "-5"]),
    "NearBlocks block": (lambda: rg.NearBlocks(0, 1), ["NearBlocks", "block", "0"]),
    "NearBlocks reach": (lambda: rg.NearBlocks(2, -1), ["NearBlocks", "reach", "-1"]),
    "Blocks layout of numbers": (lambda: rg.Blocks(T(2, 2), 4), ["Blocks", "torch.float32", "boolean"]),
    "Blocks layout of one dimension": (lambda: rg.Blocks(T(2, dtype=torch.bool), 4), ["Blocks", "[2]"]),
    "Blocks layout of lists": (lambda: rg.Blocks([[True]], 4), ["Blocks", "list"]),
    "Blocks block": (lambda: rg.Blocks(T(2, 2, dtype=torch.bool), 0), ["Blocks", "block", "0"]),
    "Lengths of fractions": (lambda: rg.Lengths(T(2)), ["Lengths", "torch.float32"]),
    "Lengths of two dimensions": (lambda: rg.Lengths(T(2, 7, dtype=LONG)), ["Lengths", "[2, 7]", "[batch]"]),
    "Lengths of a list": (lambda: rg.Lengths([3, 4]), ["Lengths", "list"]),
    "Lengths of booleans": (lambda: rg.Lengths(T(2, dtype=torch.bool)), ["Lengths", "torch.bool"]),
    "Documents of fractions": (lambda: rg.Documents(T(2, 7)), ["Documents", "torch.float32"]),
    "Documents of one dimension": (lambda: rg.Documents(T(7, dtype=LONG)), ["Documents", "[7]"]),
    "Pairs of numbers": (lambda: rg.Pairs(T(5, 7)), ["Pairs", "torch.float32", "True", "from_"]),
    "Pairs of whole numbers": (lambda: rg.Pairs(T(5, 7, dtype=LONG)), ["Pairs", "torch.int64", "True"]),
    "Pairs of one dimension": (lambda: rg.Pairs(T(7, dtype=torch.bool)), ["Pairs", "[7]"]),
    "Pairs of five dimensions": (lambda: rg.Pairs(T(1, 1, 1, 5, 7, dtype=torch.bool)), ["Pairs", "[1, 1, 1, 5, 7]"]),
    "Edges of one dimension": (lambda: rg.Edges(T(4, dtype=LONG)), ["Edges", "[4]", "[2, edges]"]),
    "Edges of rows": (lambda: rg.Edges(T(4, 2, dtype=LONG)), ["Edges", "[4, 2]", "[2, edges]"]),
    "Edges of fractions": (lambda: rg.Edges(T(2, 4)), ["Edges", "torch.float32", "int64"]),
    "Edges of booleans": (lambda: rg.Edges(T(5, 5, dtype=torch.bool)), ["Edges", "torch.bool"]),
    "Edges of lists": (lambda: rg.Edges([[0], [1]]), ["Edges", "list"]),
    "bigbird window": (lambda: rg.bigbird(4, window=0), ["window", "0"]),
    "bigbird block": (lambda: rg.bigbird(0), ["block", "0"]),
    "longformer window": (lambda: rg.longformer(-3), ["-"]),
    "longformer step": (lambda: rg.longformer(4, step=0), ["step", "0"]),
    "Dot scale": (lambda: rg.Dot(scale="big"), ["Dot", "scale", "'big'"]),
    "Dot scale of a tensor": (lambda: rg.Dot(scale=T(4)), ["Dot", "scale", "number"]),
    "Cosine scale": (lambda: rg.Cosine(scale=None), ["Cosine", "scale", "None"]),
    "Cosine scale of two dimensions": (lambda: rg.Cosine(T(4, 1)), ["Cosine", "[4, 1]", "[heads]"]),
    "Bilinear weight": (lambda: rg.Bilinear(T(6, 6)), ["Bilinear", "[6, 6]", "[heads, d, d_k]"]),
    "Bilinear of whole numbers": (lambda: rg.Bilinear(T(4, 6, 6, dtype=LONG)), ["Bilinear", "torch.int64"]),
    "Bilinear of a module": (lambda: rg.Bilinear(torch.nn.Linear(6, 6)), ["Bilinear", "Linear"]),
    "Additive weight": (lambda: rg.Additive(T(6)), ["Additive", "[6]", "[heads, d]"]),
    "Additive activation": (
        lambda: rg.Additive(T(4, 6), activation="relu"),
        ["Additive", "'relu'", "tanh", "leaky_relu"],
    ),
    "Additive slope": (
        lambda: rg.Additive(T(4, 6), activation="leaky_relu", slope="steep"),
        ["Additive", "slope", "'steep'"],
    ),
    "Rotary base": (lambda: rg.Rotary(base=0.0), ["Rotary", "base", "0"]),
    "Rotary odd dim": (lambda: rg.Rotary(dim=3), ["Rotary", "dim", "3", "even"]),
    "Rotary dim 0": (lambda: rg.Rotary(dim=0), ["Rotary", "dim", "0"]),
    "Alibi slopes": (lambda: rg.Alibi(T(4, 1)), ["Alibi", "[4, 1]", "[heads]"]),
    "Alibi of a list": (lambda: rg.Alibi([0.5, 0.25]), ["Alibi", "list"]),
    "Bias table": (lambda: rg.Bias(T(9)), ["Bias", "[9]", "[heads, n]"]),
    "Bias empty table": (lambda: rg.Bias(T(4, 0)), ["Bias", "[4, 0]"]),
    "Bias zero": (lambda: rg.Bias(T(4, 9), zero=1.5), ["Bias", "zero", "1.5"]),
    "T5Bias table": (lambda: rg.T5Bias(T(32)), ["T5Bias", "[32]", "[heads, buckets]"]),
    "T5Bias few buckets": (lambda: rg.T5Bias(T(4, 3)), ["T5Bias", "[4, 3]", "4 buckets"]),
    "T5Bias empty table": (lambda: rg.T5Bias(T(4, 0), bidirectional=False), ["T5Bias", "[4, 0]", "2 buckets"]),
    "T5Bias distance": (lambda: rg.T5Bias(T(4, 32), max_distance=0), ["T5Bias", "max_distance", "0"]),
    "T5Bias distance within the exact ones": (
        lambda: rg.T5Bias(T(4, 32), max_distance=8),
        ["T5Bias", "max_distance", "8"],
    ),
    "Shaw keys": (lambda: rg.Shaw(T(9, 6)), ["Shaw", "[9, 6]", "[heads, n, d]"]),
    "Shaw empty": (lambda: rg.Shaw(T(4, 0, 6)), ["Shaw", "[4, 0, 6]"]),
    "TransformerXL embedding": (
        lambda: rg.TransformerXL(T(9, 6), T(4, 6), T(4, 6)),
        ["TransformerXL", "embedding", "[9, 6]"],
    ),
    "TransformerXL empty": (lambda: rg.TransformerXL(T(4, 0, 6), T(4, 6), T(4, 6)), ["TransformerXL", "[4, 0, 6]"]),
    "TransformerXL content_bias": (
        lambda: rg.TransformerXL(T(4, 9, 6), T(6), T(4, 6)),
        ["TransformerXL", "content_bias", "[6]"],
    ),
    "TransformerXL position_bias": (
        lambda: rg.TransformerXL(T(4, 9, 6), T(4, 6), T(6)),
        ["TransformerXL", "position_bias", "[6]"],
    ),
    "from_key_padding": (
        lambda: rg.from_key_padding(T(7, dtype=torch.bool)),
        ["key_padding_mask", "[7]", "[batch, keys]"],
    ),
    "from_key_padding of whole numbers": (
        lambda: rg.from_key_padding(T(2, 7, dtype=LONG)),
        ["key_padding_mask", "torch.int64"],
    ),
    "from_key_padding of biases": (lambda: rg.from_key_padding(-3 * T(2, 7)), ["key_padding_mask", "bias"]),
    "from_attn_mask": (lambda: rg.from_attn_mask(T(2, 4, 5, 7, dtype=torch.bool)), ["attn_mask", "[2, 4, 5, 7]"]),
    "from_attn_mask without heads": (
        lambda: rg.from_attn_mask(T(8, 5, 7, dtype=torch.bool)),
        ["attn_mask", "[8, 5, 7]", "heads"],
    ),
    "from_attn_mask of other heads": (
        lambda: rg.from_attn_mask(T(8, 5, 7, dtype=torch.bool), heads=3),
        ["attn_mask", "[8, 5, 7]", "heads"],
    ),
    "from_additive of biases": (lambda: rg.from_additive(T(5, 7)), ["bias", "mask"]),
    "from_additive of NaN": (lambda: rg.from_additive(torch.nan * T(5, 7)), ["bias", "mask"]),
    "from_additive of booleans": (lambda: rg.from_additive(T(5, 7, dtype=torch.bool)), ["mask", "torch.bool"]),
    "from_hugging_face": (lambda: rg.from_hugging_face(T(2, 5, 7)), ["attention_mask", "[2, 5, 7]"]),
    "from_hugging_face of other numbers": (
        lambda: rg.from_hugging_face(2 * T(2, 7, dtype=LONG)),
        ["attention_mask", "0 and 1"],
    ),
    "from_hugging_face of a list": (lambda: rg.from_hugging_face([[1, 1]]), ["attention_mask", "list"]),
    "causal_from_start": (lambda: rg.causal_from_start(-1, 4), ["queries", "-1"]),
}


@pytest.mark.parametrize("name", MAKING)
def test_parts_with_wrong_fields(name: str) -> None:
    make, words = MAKING[name]
    assert_refused(rg.BadInput, words, make)


PARTS: dict[str, tuple[dict[str, object], list[str]]] = {
    "a score's class": ({"score": rg.Dot}, ["score", "Dot(...)"]),
    "a score by name": ({"score": "dot"}, ["score", "'dot'", "Score"]),
    "a position as score": ({"score": rg.Alibi()}, ["score", "Alibi", "Score"]),
    "a tensor as score": ({"score": T(4, 6)}, ["score", "Score"]),
    "a position's class": ({"position": rg.Alibi}, ["position", "Alibi(...)"]),
    "a tensor as position": ({"position": torch.zeros(5, 7)}, ["position", "Position"]),
    "a mask as position": ({"position": rg.Causal()}, ["position", "Causal", "Position"]),
    "Bilinear of other heads": (
        {"score": rg.Bilinear(T(2, 6, 6))},
        ["Bilinear", "[2, 6, 6]", "[4, 6, 6]", "[2, 4, 5, 6]"],
    ),
    "Bilinear of other sizes": ({"score": rg.Bilinear(T(4, 5, 6))}, ["Bilinear", "[4, 5, 6]", "[4, 6, 6]"]),
    "Cosine of other heads": ({"score": rg.Cosine(T(3))}, ["Cosine", "[3]", "4"]),
    "Additive of other heads": ({"score": rg.Additive(T(2, 6))}, ["Additive", "[2, 6]", "[4, 6]", "[2, 4, 5, 6]"]),
    "Additive of another size": ({"score": rg.Additive(T(4, 5))}, ["Additive", "[4, 5]", "[4, 6]"]),
    "Alibi of other heads": ({"position": rg.Alibi(T(3))}, ["Alibi", "[3]", "4"]),
    "Bias of other heads": ({"position": rg.Bias(T(1, 9))}, ["Bias", "[1, 9]", "4"]),
    "T5Bias of other heads": ({"position": rg.T5Bias(T(3, 32))}, ["T5Bias", "[3, 32]", "4"]),
    "Shaw of other heads": ({"position": rg.Shaw(T(3, 9, 6))}, ["Shaw", "[3, 9, 6]", "4"]),
    "Shaw of another size": ({"position": rg.Shaw(T(4, 9, 5))}, ["Shaw", "[4, 9, 5]", "6"]),
    "TransformerXL of other heads": (
        {"position": rg.TransformerXL(T(3, 9, 6), T(4, 6), T(4, 6))},
        ["embedding", "[3, 9, 6]", "4"],
    ),
    "TransformerXL of another size": (
        {"position": rg.TransformerXL(T(4, 9, 5), T(4, 6), T(4, 6))},
        ["embedding", "[4, 9, 5]", "6"],
    ),
    "TransformerXL content of other heads": (
        {"position": rg.TransformerXL(T(4, 9, 6), T(2, 6), T(4, 6))},
        ["content_bias", "[2, 6]", "4"],
    ),
    "TransformerXL position of another size": (
        {"position": rg.TransformerXL(T(4, 9, 6), T(4, 6), T(4, 5))},
        ["position_bias", "[4, 5]", "6"],
    ),
    "Rotary of too many": ({"position": rg.Rotary(dim=8)}, ["Rotary", "6", "8"]),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("function", [rg.attend, rg.look, rg.plan])
def test_parts_that_do_not_fit(name: str, function: Callable[..., object]) -> None:
    parts, words = PARTS[name]
    assert_refused(rg.BadInput, words, lambda: function(**tensors(), **parts))


def test_rotary_of_an_odd_size() -> None:
    odd = {"q": torch.randn(2, 4, 5, 7), "k": torch.randn(2, 2, 7, 7)}
    assert_refused(
        rg.BadInput, ["Rotary", "head_dim", "7", "even"], lambda: rg.attend(**tensors(**odd), position=rg.Rotary())
    )


def test_scores_other_than_bilinear_need_one_size() -> None:
    other = tensors(k=torch.randn(2, 2, 7, 5))
    for score in (rg.Dot(), rg.Cosine(), rg.Additive(T(4, 6))):
        assert_refused(
            rg.BadInput, [type(score).__name__, "6", "5"], lambda score=score: rg.attend(**other, score=score)
        )
    assert rg.attend(**other, score=rg.Bilinear(T(4, 6, 5))).shape == (2, 4, 5, 3)


SCORES = [rg.Bilinear(T(4, 6, 6)), rg.Cosine(), rg.Additive(T(4, 6))]
INSIDE = [rg.Rotary(), rg.Shaw(T(4, 9, 6)), rg.TransformerXL(T(4, 9, 6), T(4, 6), T(4, 6))]


@pytest.mark.parametrize("score", SCORES, ids=lambda part: type(part).__name__)
@pytest.mark.parametrize("position", INSIDE, ids=lambda part: type(part).__name__)
@pytest.mark.parametrize("function", [rg.attend, rg.look, rg.plan])
def test_positions_inside_a_dot_product(
    score: rg.Score, position: rg.Position, function: Callable[..., object]
) -> None:
    words = [type(score).__name__, type(position).__name__, "Dot", "Alibi"]
    assert_refused(rg.Unsupported, words, lambda: function(**tensors(), score=score, position=position))


def elsewhere() -> dict[str, dict[str, object]]:
    """Parts whose tensors are on another device than q."""
    away = lambda *shape, dtype=None: torch.empty(*shape, dtype=dtype, device="meta")  # noqa: E731
    return {
        "Additive": {"score": rg.Additive(away(4, 6))},
        "Bilinear": {"score": rg.Bilinear(away(4, 6, 6))},
        "Cosine": {"score": rg.Cosine(away(4))},
        "Alibi": {"position": rg.Alibi(away(4))},
        "Bias": {"position": rg.Bias(away(4, 9))},
        "T5Bias": {"position": rg.T5Bias(away(4, 32))},
        "Shaw": {"position": rg.Shaw(away(4, 9, 6))},
        "TransformerXL": {"position": rg.TransformerXL(T(4, 9, 6), away(4, 6), T(4, 6))},
        "Lengths": {"mask": rg.Lengths(away(2, dtype=LONG))},
        "Documents": {"mask": rg.Causal() & rg.Documents(away(2, 7, dtype=LONG))},
        "Pairs": {"mask": rg.Pairs(away(5, 7, dtype=torch.bool))},
        "Blocks": {"mask": ~rg.Blocks(away(2, 3, dtype=torch.bool), 3)},
        "Global": {"mask": rg.Global(away(2, 7, dtype=torch.bool))},
        "Global indices": {"mask": rg.Global(away(2, dtype=LONG))},
        "Edges": {"mask": rg.Edges(away(2, 9, dtype=LONG))},
    }


@pytest.mark.parametrize("name", elsewhere())
@pytest.mark.parametrize("function", [rg.attend, rg.look])
def test_parts_on_another_device(name: str, function: Callable[..., object]) -> None:
    assert_refused(rg.BadInput, ["meta", "cpu", ".to("], lambda: function(**tensors(), **elsewhere()[name]))


@pytest.mark.parametrize("dropout", [-0.1, 1.1, float("nan"), float("inf"), "0.1", None, T(1)], ids=str)
def test_dropout_outside(dropout: object) -> None:
    assert_refused(rg.BadInput, ["dropout", "0 to 1"], lambda: rg.attend(**tensors(), dropout=dropout))


@pytest.mark.parametrize("function", [rg.attend, rg.plan])
def test_unknown_backend(function: Callable[..., object]) -> None:
    assert_refused(
        rg.BadInput, ["'cuda'", "auto", "blockwise", "reference"], lambda: function(**tensors(), backend="cuda")
    )


def test_unknown_backend_of_an_empty_call() -> None:
    empty = tensors(q=torch.randn(2, 4, 0, 6))
    assert_refused(rg.BadInput, ["'cuda'", "auto"], lambda: rg.attend(**empty, backend="cuda"))


def test_unknown_method() -> None:
    for method in ("exact", rg.Exact, rg.Dot()):
        assert_refused(rg.BadInput, ["method", "Exact()"], lambda method=method: rg.attend(**tensors(), method=method))
        assert_refused(rg.BadInput, ["method", "Exact()"], lambda method=method: rg.look(**tensors(), method=method))
        assert_refused(rg.BadInput, ["method", "Exact()"], lambda method=method: rg.plan(**tensors(), method=method))


CANNOT: dict[str, tuple[str, dict[str, object], list[str]]] = {
    "edges without a graph": ("edges", {"mask": rg.Causal()}, ["Edges"]),
    "edges of a combination": ("edges", {"mask": rg.Edges(torch.tensor([[0], [0]])) & rg.Causal()}, ["Edges"]),
    "sdpa of a sum": ("sdpa", {"score": rg.Additive(T(4, 6))}, ["Additive"]),
    "sdpa with vectors by distance": (
        "sdpa",
        {"position": rg.Shaw(torch.randn(HEADS, 3, DIM))},
        ["Shaw"],
    ),
    "sdpa with dropout": ("sdpa", {"dropout": 0.5}, ["dropout"]),
}


@pytest.mark.parametrize(
    "parts, words",
    [
        ({"mask": rg.Window(2)}, ["mask", "elements"]),
        ({"mask": rg.Causal()}, ["mask", "elements"]),
        ({"position": rg.Alibi()}, ["Alibi", "elements"]),
    ],
)
def test_no_large_tensor_for_torch(parts: dict[str, Any], words: list[str]) -> None:
    """A mask or a bias of many elements, and more than the queries and keys have, is not made into a tensor."""
    q, k = torch.randn(1, 1, 2063, 1), torch.randn(1, 1, 2064, 1)
    assert_refused(rg.Unsupported, ["'sdpa'", "auto", *words], lambda: rg.attend(q, k, k, **parts, backend="sdpa"))


@pytest.mark.parametrize("name", CANNOT)
@pytest.mark.parametrize("function", [rg.attend, rg.plan])
def test_named_backend_that_cannot(name: str, function: Callable[..., object]) -> None:
    backend, parts, words = CANNOT[name]
    assert_refused(
        rg.Unsupported, [f"'{backend}'", "auto", *words], lambda: function(**tensors(), **parts, backend=backend)
    )


@pytest.mark.parametrize("top", [-1, 1.5, True, "3", None], ids=str)
def test_bad_top(top: object) -> None:
    assert_refused(rg.BadInput, ["top", str(top)], lambda: rg.look(**tensors(), top=top))


@pytest.mark.parametrize(
    "size", [0, -1, (0, 4), (4, -1), (4,), (1, 2, 3), 2.5, (1.5, 2), "ab", True, (2, None)], ids=str
)
def test_bad_map(size: object) -> None:
    assert_refused(rg.BadInput, ["map"], lambda: rg.look(**tensors(), map=size))


def test_weights_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.attention.look.free_memory", lambda device: 1000)
    assert_refused(
        rg.TooLarge, ["2 × 4 × 5 × 7", "1.1 KiB", "1000 B", "top", "map"], lambda: rg.look(**tensors(), weights=True)
    )
    assert rg.look(**tensors()).weights is None


def test_combinations_with_something_else() -> None:
    for other in (True, T(5, 7, dtype=torch.bool), rg.Dot(), None):
        with pytest.raises(TypeError):
            rg.Causal() & other  # type: ignore[operator]
        with pytest.raises(TypeError):
            rg.Causal() | other  # type: ignore[operator]


def test_errors_derive_from_builtin_errors() -> None:
    assert issubclass(rg.BadInput, ValueError) and issubclass(rg.TooLarge, MemoryError)
    assert issubclass(rg.Missing, ImportError)
    assert all(issubclass(kind, rg.RegardError) for kind in (rg.BadInput, rg.Unsupported, rg.TooLarge, rg.Missing))


def attend_with_gradients(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """The output, after asserting that it and the gradients are finite and of the right shape."""
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    output = rg.attend(*leaves, **options)
    output.sum().backward()
    assert output.shape == (*q.shape[:3], v.shape[3]) and output.dtype == q.dtype
    assert bool(output.isfinite().all()), "the output is not finite"
    for name, x in zip("qkv", leaves, strict=True):
        assert x.grad is not None and x.grad.shape == x.shape, f"no gradient of {name}"
        assert bool(x.grad.isfinite().all()), f"the gradient of {name} is not finite"
    return output.detach()


EMPTY = {
    "queries": ((2, 4, 0, 6), (2, 2, 7, 6), (2, 2, 7, 3)),
    "keys": ((2, 4, 5, 6), (2, 2, 0, 6), (2, 2, 0, 3)),
    "queries and keys": ((2, 4, 0, 6), (2, 2, 0, 6), (2, 2, 0, 3)),
    "batch": ((0, 4, 5, 6), (0, 2, 7, 6), (0, 2, 7, 3)),
    "heads": ((2, 0, 5, 6), (2, 0, 7, 6), (2, 0, 7, 3)),
    "value dim": ((2, 4, 5, 6), (2, 2, 7, 6), (2, 2, 7, 0)),
}
EMPTY_MASKS: dict[str, Callable[[int, int, int], rg.Mask | None]] = {
    "no mask": lambda batch, queries, keys: None,
    "Causal": lambda batch, queries, keys: rg.Causal(),
    "a combination": lambda batch, queries, keys: ~rg.Causal() | (rg.Window(2, 2) & rg.RandomBlocks(2, 1)),
    "recipes": lambda batch, queries, keys: rg.longformer(4, 0) | rg.bigbird(2, tokens=0),
    "Lengths": lambda batch, queries, keys: rg.Lengths(torch.zeros(batch, dtype=LONG), torch.ones(batch, dtype=LONG)),
    "Documents": lambda batch, queries, keys: rg.Documents(
        torch.zeros(batch, keys, dtype=LONG), torch.zeros(batch, queries, dtype=LONG)
    ),
    "Pairs": lambda batch, queries, keys: rg.Pairs(torch.ones(queries, keys, dtype=torch.bool)),
    "Blocks": lambda batch, queries, keys: rg.Blocks(torch.ones(-(-queries // 4), -(-keys // 4), dtype=torch.bool), 4),
    "Edges": lambda batch, queries, keys: rg.Edges(torch.zeros(2, 0, dtype=LONG)),
    "Global": lambda batch, queries, keys: rg.Global(torch.ones(batch, keys, dtype=torch.bool)),
}


@pytest.mark.parametrize("axis", EMPTY)
@pytest.mark.parametrize("mask", EMPTY_MASKS)
def test_empty_calls_work(axis: str, mask: str) -> None:
    q, k, v = (torch.randn(shape) for shape in EMPTY[axis])
    made = EMPTY_MASKS[mask](q.shape[0], q.shape[2], k.shape[2])
    for backend in ("auto", "reference", "blockwise"):
        output = attend_with_gradients(q, k, v, mask=made, backend=backend)
        assert not output.any()
    view = rg.look(q, k, v, mask=made, weights=True, top=2, map=(2, 3))
    assert view.lse.shape == q.shape[:3] and view.received.shape == (*q.shape[:2], k.shape[2])
    assert view.weights.shape == (*q.shape[:3], k.shape[2]) and view.map.shape == (*q.shape[:2], 2, 3)
    assert bool(view.map.isfinite().all()) and view.top_keys.shape == (*q.shape[:3], 2)
    if axis == "keys":
        assert bool((view.lse == -torch.inf).all()) and not view.entropy.any() and bool((view.top_keys == -1).all())
    assert "tiles" in str(rg.plan(q, k, v, mask=made))


@pytest.mark.parametrize("axis", ["queries", "keys", "batch", "value dim"])
@pytest.mark.parametrize("score", ["Additive", "Bilinear", "Cosine"])
def test_empty_calls_give_parts_their_gradients(axis: str, score: str) -> None:
    q, k, v = (torch.randn(shape) for shape in EMPTY[axis])
    weight = {"Additive": torch.randn(4, 6), "Bilinear": torch.randn(4, 6, 6), "Cosine": torch.randn(4)}[
        score
    ].requires_grad_()
    table = torch.randn(4, 5).requires_grad_()
    rg.attend(
        q.requires_grad_(), k, v, score=getattr(rg, score)(weight), position=rg.Bias(table, zero=2)
    ).sum().backward()
    assert weight.grad is not None and not weight.grad.any()
    assert table.grad is not None and not table.grad.any()


def test_no_keys_and_large_half_precision_queries() -> None:
    q = torch.full((1, 8, 64, 64), 100.0, dtype=torch.float16)
    k = v = torch.zeros(1, 8, 0, 64, dtype=torch.float16)
    assert not attend_with_gradients(q, k, v).any()


DEAD = {
    "not everything": ~rg.Everything(),
    "nobody": rg.Lengths(torch.zeros(2, dtype=LONG)),
    "no pair": rg.Pairs(torch.zeros(1, 1, dtype=torch.bool)),
    "no edge": rg.Edges(torch.zeros(2, 0, dtype=LONG)),
    "no block": rg.RandomBlocks(2, 0),
    "no document": rg.Documents(torch.full((2, 7), -1), torch.full((2, 5), -1)),
    "a contradiction": rg.Causal() & ~rg.Causal(),
    "the second row alone": rg.Edges(torch.tensor([[0, 1], [1, 1]])),
    "the second of the batch alone": rg.Lengths(torch.tensor([0, 3])),
    "the second head alone": rg.Pairs(torch.tensor([False, True, False, False]).view(1, 4, 1, 1)),
}
BROAD: list[dict[str, Any]] = [
    {},
    {"score": rg.Additive(torch.ones(4, 6)), "position": rg.Alibi()},
    {"score": rg.Cosine(2.0), "position": rg.T5Bias(torch.ones(4, 8), max_distance=16)},
    {"position": rg.Rotary()},
    {"position": rg.Shaw(torch.ones(4, 3, 6))},
    {"dropout": 0.5},
    {"dropout": 1.0},
]


@pytest.mark.parametrize("name", DEAD)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_dead_rows_are_zero_and_never_nan(name: str, dtype: torch.dtype) -> None:
    mask = DEAD[name]
    q, k, v = (x.to(dtype) for x in tensors().values())
    live = torch.zeros(2, 4, 5, dtype=torch.bool)
    live |= rg.look(q, k, v, mask=mask).lse > -torch.inf
    assert live.any() == ("alone" in name)
    for options in BROAD:
        for backend in ["auto", "reference", "blockwise"] + ["edges"] * isinstance(mask, rg.Edges):
            output = attend_with_gradients(q, k, v, mask=mask, backend=backend, **options)
            assert not output[~live].any()


SIZES = {torch.float32: 1e4, torch.float64: 1e4, torch.bfloat16: 1e4, torch.float16: 6e4}


@pytest.mark.parametrize("dtype", SIZES, ids=str)
@pytest.mark.parametrize("backend", ["auto", "reference", "blockwise", "edges", "sdpa"])
def test_huge_numbers(dtype: torch.dtype, backend: str) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (SIZES[dtype] * (2 * torch.rand(1, 2, 9, 8, generator=generator) - 1) for _ in range(3))
    q, k, v = (x.to(dtype) for x in (q, k, v))
    graph = rg.Edges(torch.tensor([[0, 3, 5, 8], [0, 1, 1, 7]]))
    scores = [
        rg.Dot(),
        rg.Cosine(3.0),
        rg.Bilinear(T(2, 8, 8)),
        rg.Additive(T(2, 8)),
        rg.Additive(T(2, 8), "leaky_relu"),
    ]
    for score in scores[: 1 if backend == "sdpa" else None]:
        attend_with_gradients(q, k, v, score=score, mask=graph if backend == "edges" else None, backend=backend)
    if backend != "sdpa":
        attend_with_gradients(
            q, k, v, position=rg.Alibi(SIZES[dtype] * T(2)), mask=graph if backend == "edges" else None, backend=backend
        )


@pytest.mark.parametrize("backend", ["blockwise", "edges"])
@pytest.mark.parametrize("size", [1.0, 30.0, 39.9, 45.0, 100.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_tanh_of_large_and_cancelling_numbers(backend: str, size: float, dtype: torch.dtype) -> None:
    """q + k near zero, from ±size: what matters is the little that is left."""
    generator = torch.Generator().manual_seed(1)
    sign = torch.randint(2, (1, 2, 1, 8), generator=generator) * 2.0 - 1
    q = size * sign + torch.randn(1, 2, 6, 8, generator=generator)
    k = -size * sign + torch.randn(1, 2, 5, 8, generator=generator)
    v, weight = torch.randn(1, 2, 5, 3, generator=generator), torch.randn(2, 8, generator=generator)
    graph = rg.Edges(torch.cartesian_prod(torch.arange(5), torch.arange(6)).mT.contiguous())

    def run(dtype: torch.dtype, backend: str) -> list[Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v, weight)]
        output = rg.attend(*leaves[:3], score=rg.Additive(leaves[3]), mask=graph, backend=backend)
        output.sum().backward()
        return [output.detach(), *(x.grad for x in leaves)]  # type: ignore[misc]

    truth, own, actual = run(torch.float64, "reference"), run(dtype, "reference"), run(dtype, backend)
    for want, reference, got in zip(truth, own, actual, strict=True):
        limit = 2 * (reference - want).abs().max() + 16 * torch.finfo(dtype).eps * want.abs().max()
        assert bool(got.isfinite().all()) and (got - want).abs().max() <= limit


SPECIFICATIONS: dict[str, dict[str, Any]] = {
    "a learned score": {"score": rg.nn.LearnedCosine()},
    "a learned position": {"position": rg.nn.LearnedT5Bias(buckets=8)},
    "a learned method": {"method": rg.nn.LearnedLinformer(tokens=7, rank=3)},
    "a mask for each layer": {"mask": rg.nn.BigBirdMask(block=2, random=1, heads=4, positions=16)},
    "in a combination": {"mask": rg.Causal() & rg.nn.BigBirdMask(block=2, random=1, heads=4, positions=16)},
}


@pytest.mark.parametrize("name", SPECIFICATIONS)
def test_specifications_are_refused_before_a_layer_builds_them(name: str) -> None:
    parts = SPECIFICATIONS[name]
    assert rg.Parts(**parts) == rg.Parts(**parts)
    words = ["layer", "MultiHeadAttention" if "mask" not in parts else "at_layer"]
    assert_refused(rg.BadInput, words, lambda: rg.attend(**tensors(), **parts))
