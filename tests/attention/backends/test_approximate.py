"""The approximate methods against their formulas, written naively in float64."""

import math
from collections.abc import Callable

import pytest
import torch
from tests.attention.naive_methods import (
    assert_close,
    assert_same,
    each_head,
    plain_nystrom,
    plain_performer,
    plain_softmax,
    projections,
    tensors,
)
from torch import Tensor

from regard.attention.attend import attend
from regard.attention.backends.approximate.performer import draw_directions
from regard.attention.parts.mask import Mask
from regard.attention.parts.masks import Causal, Everything, Lengths, Pairs, Window
from regard.attention.parts.methods import Exact, Linformer, Method, Nystrom, Performer
from regard.attention.parts.positions import Alibi, Bias, Position, Rotary, Shaw, TransformerXL
from regard.attention.parts.scores import Additive, Bilinear, Cosine, Dot, Score
from regard.errors import BadInput, Unsupported


def some(name: str, keys: int, dtype: torch.dtype = torch.float64) -> Method:
    """A method by name, for a call with this many keys."""
    generator = torch.Generator().manual_seed(1)
    projection = torch.randn(5, keys, generator=generator, dtype=torch.float64).to(dtype) / math.sqrt(keys)
    return {"linformer": Linformer(projection), "nystrom": Nystrom(5), "performer": Performer(24)}[name]


METHODS = ["linformer", "nystrom", "performer"]
WITH_MASKS = [("linformer", None), ("nystrom", None), ("performer", None), ("performer", Causal())]
SIZES = [(53, 53), (7, 53), (53, 11), (1, 53), (53, 1)]


@pytest.mark.parametrize(("queries", "keys"), SIZES)
@pytest.mark.parametrize("front", [(), (2,)])
def test_linformer_is_softmax_over_projected_keys(queries: int, keys: int, front: tuple[int, ...]) -> None:
    q, k, v = tensors(queries, keys, kv_heads=2)
    e, f = projections(5, keys, *front)
    want = plain_softmax(q, each_head(e @ k, q), each_head(f @ v, q))
    assert_same(attend(q, k, v, method=Linformer(e, f)), want, (q, k, v, e, f))


def test_linformer_projects_values_like_keys_by_default() -> None:
    q, k, v = tensors(11, 11)
    e, _ = projections(3, 11)
    assert_same(attend(q, k, v, method=Linformer(e)), attend(q, k, v, method=Linformer(e, e)), (q, k, v, e))


SCORES: dict[str, Callable[[], Score]] = {
    "dot": lambda: Dot(scale=-0.3),
    "bilinear": lambda: Bilinear(torch.randn(4, 8, 8, dtype=torch.float64) / 8),
    "cosine": lambda: Cosine(torch.rand(4, dtype=torch.float64) * 5),
    "additive": lambda: Additive(torch.randn(4, 8, dtype=torch.float64)),
}


@pytest.mark.parametrize("name", SCORES)
def test_linformer_with_the_identity_is_exact(name: str) -> None:
    q, k, v = tensors(13, 17, kv_heads=2)
    score = SCORES[name]()
    exact = attend(q, k, v, score=score, backend="reference")
    assert_same(attend(q, k, v, score=score, method=Linformer(torch.eye(17))), exact, (q, k, v))


@pytest.mark.parametrize("name", ["dot", "bilinear", "cosine"])
@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_nystrom_with_a_landmark_a_token_is_exact(queries: int, keys: int, name: str) -> None:
    q, k, v = tensors(queries, keys, kv_heads=2)
    score = SCORES[name]()
    exact = attend(q, k, v, score=score, backend="reference")
    assert_same(attend(q, k, v, score=score, method=Nystrom(min(queries, keys))), exact, (q, k, v))
    assert_same(attend(q, k, v, score=score, method=Nystrom(100)), exact, (q, k, v))


@pytest.mark.parametrize(("queries", "keys"), [(53, 53), (48, 48), (11, 53), (53, 11)])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_nystrom_is_its_formula(queries: int, keys: int, kv_heads: int) -> None:
    q, k, v = tensors(queries, keys, kv_heads=kv_heads)
    assert_same(attend(q, k, v, method=Nystrom(6)), plain_nystrom(q, k, v, 6), (q, k, v))
    assert_same(attend(q, k, v, method=Nystrom(5, iterations=2)), plain_nystrom(q, k, v, 5, 2), (q, k, v))


def test_nystrom_is_the_hugging_face_one() -> None:
    pytest.importorskip("transformers")
    from transformers import NystromformerConfig
    from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

    config = NystromformerConfig(hidden_size=32, num_attention_heads=4, num_landmarks=6, segment_means_seq_len=48)
    theirs = NystromformerSelfAttention(config).eval()
    theirs.conv_kernel_size = None
    theirs.init_option = "exact"  # each matrix by its own norm, not by the largest of the batch
    x = torch.randn(2, 48, 32)
    q, k, v = (part(x).unflatten(-1, (4, 8)).transpose(1, 2) for part in (theirs.query, theirs.key, theirs.value))
    actual = attend(q, k, v, method=Nystrom(6)).transpose(1, 2).flatten(2)
    assert_close(actual, theirs(x)[0], 1e-5)


@pytest.mark.parametrize(("queries", "keys"), SIZES)
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_performer_is_its_formula(queries: int, keys: int, kv_heads: int) -> None:
    q, k, v = tensors(queries, keys, kv_heads=kv_heads)
    assert_same(attend(q, k, v, method=Performer(21, seed=3)), plain_performer(q, k, v, 21, 3), (q, k, v))


@pytest.mark.parametrize(
    ("queries", "keys"), [(53, 53), (7, 131), (257, 300), (128, 128), (2, 53), (200, 131), (53, 1)]
)
def test_causal_performer_is_its_formula(queries: int, keys: int) -> None:
    q, k, v = tensors(queries, keys, kv_heads=2)
    want = plain_performer(q, k, v, 21, allowed=Causal().dense(queries, keys))
    assert_same(attend(q, k, v, mask=Causal(), method=Performer(21)), want, (q, k, v))


def test_causal_performer_with_padding_is_its_formula() -> None:
    q, k, v = tensors(150, 190, batch=3)
    mask = Lengths(torch.tensor([190, 131, 0]), torch.tensor([150, 140, 150])) & Causal()
    want = plain_performer(q, k, v, 21, allowed=mask.dense(150, 190))
    assert_same(attend(q, k, v, mask=mask, method=Performer(21)), want, (q, k, v))


def test_performer_error_falls_with_features() -> None:
    q, k, v = (x.detach() for x in tensors(60, 60, dim=16))
    for mask in (None, Causal()):
        few, more, many = (
            sum(Performer(features, seed).error(q / 2, k / 2, v, mask=mask) for seed in range(2)) / 2
            for features in (16, 256, 4096)
        )
        assert many < more / 2 < few / 2
        assert many < 0.1


def test_performer_features_are_orthogonal_and_unbiased() -> None:
    directions = draw_directions(20, 8, 0)
    assert directions.shape == (20, 8)
    for block in (directions[:8], directions[8:16], directions[16:]):
        lengths = block.norm(dim=-1)
        assert_close(block @ block.mT, torch.diag(lengths.square()), 1e-12)
    many = draw_directions(80_000, 8, 0)
    assert_close(many.mT @ many / 80_000, torch.eye(8, dtype=torch.float64), 0.02)


def test_performer_is_a_function_of_its_seed() -> None:
    q, k, v = tensors(9, 9)
    one, again, other = (attend(q, k, v, method=Performer(16, seed)) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.allclose(one, other)
    assert Performer(16, seed=1) == Performer(16, seed=1) != Performer(16)


def test_the_future_does_not_leak() -> None:
    q, k, v = tensors(150, 150)
    out = attend(q, k, v, mask=Causal(), method=Performer(16))
    for grad in torch.autograd.grad(out[:, :, :80].sum(), (k, v)):
        assert not grad[:, :, 80:].any()
    late = torch.arange(150)[:, None] >= 80
    changed = attend(q, k.where(~late, 3 * k), v.where(~late, -v), mask=Causal(), method=Performer(16))
    assert_close(changed[:, :, :80], out[:, :, :80], 1e-12)
    assert not torch.allclose(changed[:, :, 80:], out[:, :, 80:])


def test_large_keys_are_not_drowned_by_small_ones() -> None:
    q, k, v = (x.detach().float() for x in tensors(300, 300))
    k[:, :, :150] *= 12  # their features are e^100 and more below the others'
    actual = attend(q, k, v, mask=Causal(), method=Performer(8))
    want = plain_performer(q.double(), k.double(), v.double(), 8, allowed=Causal().dense(300, 300))
    assert_close(actual.double(), want, 1e-3)
    opposite = attend(20 * q, -20 * q, v, method=Performer(8))
    assert opposite.isfinite().all() and (opposite != 0).any(-1).all()


@pytest.mark.parametrize(("name", "mask"), WITH_MASKS)
def test_rotary_turns_before_the_approximation(name: str, mask: Mask | None) -> None:
    q, k, v = tensors(23, 29, kv_heads=2)
    turned = Rotary().transform(q, k)
    method = some(name, 29)
    want = attend(*turned, v, mask=mask, method=method)
    assert_same(attend(q, k, v, position=Rotary(), mask=mask, method=method), want, (q, k, v))


@pytest.mark.parametrize("name", ["nystrom", "performer"])
@pytest.mark.parametrize("score", ["bilinear", "cosine"])
def test_scores_are_lowered_to_dots(name: str, score: str) -> None:
    q, k, v = tensors(23, 29)
    part, method = SCORES[score](), some(name, 29)
    a, b, scale = part.lower(q, k)
    want = attend(a, b, v, score=Dot(scale=scale), method=method)
    assert_same(attend(q, k, v, score=part, method=method), want, (q, k, v))


@pytest.mark.parametrize("name", METHODS)
def test_scales_may_be_negative_or_zero(name: str) -> None:
    q, k, v = tensors(23, 29)
    method = some(name, 29)
    want = attend(-q, k, v, score=Dot(scale=0.3), method=method)
    assert_same(attend(q, k, v, score=Dot(scale=-0.3), method=method), want, (q, k, v))
    uniform = (method.keys @ v if isinstance(method, Linformer) else v).mean(2, keepdim=True).expand(-1, -1, 23, -1)
    assert_close(attend(q, k, v, score=Dot(scale=0.0), method=method), uniform)


@pytest.mark.parametrize(("name", "mask"), WITH_MASKS)
def test_padded_keys_never_matter(name: str, mask: Mask | None) -> None:
    q, k, v = tensors(40, 40, batch=4, kv_heads=2)
    lengths = torch.tensor([40, 17, 3, 0])
    mask = Lengths(lengths) & (mask or Everything())
    padded = (torch.arange(40)[:, None] >= lengths[:, None, None, None]).expand(4, 1, 40, 1)
    method = some(name, 40)
    clean = attend(q, k, v, mask=mask, method=method)
    spoiled = attend(q, k.masked_fill(padded, math.nan), v.masked_fill(padded, math.inf), mask=mask, method=method)
    assert torch.equal(clean, spoiled)
    assert not clean[3].any()
    for grad in torch.autograd.grad(clean.square().sum(), (q, k, v)):
        assert grad.isfinite().all()
        assert not grad[3].any()


def assert_padding_free(method: Method, mask: Mask, lengths: Tensor, query_lengths: Tensor, causal: bool) -> None:
    """Each row of a padded batch is what it would be alone and without padding, gradients included."""
    q, k, v = tensors(40, 43 if lengths is not query_lengths else 40, batch=len(lengths), kv_heads=2)
    padded = attend(q, k, v, mask=mask, method=method)
    for row, (keys, queries) in enumerate(zip(lengths.tolist(), query_lengths.tolist(), strict=True)):
        alone = [x[row : row + 1, :, :size] for x, size in ((q, queries), (k, keys), (v, keys))]
        want = attend(*alone, mask=Causal() if causal else None, method=method)
        assert_same(padded[row : row + 1, :, :queries], want, (q, k, v))


@pytest.mark.parametrize("method", [Nystrom(5), Performer(24)])
def test_padding_changes_nothing(method: Method) -> None:
    lengths = torch.tensor([40, 17, 6, 5, 3, 1])
    assert_padding_free(method, Lengths(lengths), lengths, lengths, False)
    queries = torch.tensor([40, 17, 4, 33, 40, 1])
    keys = torch.tensor([43, 17, 30, 5, 3, 43])
    assert_padding_free(method, Lengths(keys) & Lengths(torch.full_like(keys, 43), queries), keys, queries, False)


def test_padding_changes_nothing_in_order() -> None:
    lengths = torch.tensor([40, 17, 6, 1])
    assert_padding_free(Performer(24), Lengths(lengths) & Causal(), lengths, lengths, True)


@pytest.mark.parametrize("name", METHODS)
def test_padded_queries_give_zeros(name: str) -> None:
    q, k, v = tensors(20, 20)
    out = attend(q, k, v, mask=Lengths(torch.tensor([20, 9]), torch.tensor([13, 0])), method=some(name, 20))
    assert not out[0, :, 13:].any() and not out[1].any()
    assert (out[0, :, :13] != 0).any(-1).all()


@pytest.mark.parametrize("name", METHODS)
def test_rows_of_the_batch_are_independent(name: str) -> None:
    q, k, v = tensors(31, 31, batch=3)
    whole = attend(q, k, v, method=some(name, 31))
    assert_close(attend(q[1:2], k[1:2], v[1:2], method=some(name, 31)), whole[1:2], 1e-12)


@pytest.mark.parametrize(("name", "mask"), WITH_MASKS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_computed_in_float32(name: str, mask: Mask | None, dtype: torch.dtype) -> None:
    q, k, v = (x.detach().to(dtype) for x in tensors(37, 37, kv_heads=2))
    actual = attend(q, k, v, mask=mask, method=some(name, 37, torch.float32))
    want = attend(q.double(), k.double(), v.double(), mask=mask, method=some(name, 37, torch.float32))
    assert actual.dtype == dtype
    assert_close(actual.double(), want, torch.finfo(dtype).eps)


@pytest.mark.parametrize("name", METHODS)
def test_autocast_changes_the_type_and_nothing_else(name: str) -> None:
    q, k, v = (x.detach().float() for x in tensors(37, 37))
    method = some(name, 37, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        actual = attend(q, k, v, method=method)
    assert torch.equal(actual, attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), method=method))


@pytest.mark.parametrize("name", METHODS)
def test_compiles_without_a_break(name: str) -> None:
    q, k, v = (x.detach().float().requires_grad_() for x in tensors(37, 41, kv_heads=2))
    projection = some("linformer", 41, torch.float32).keys.requires_grad_()  # type: ignore[attr-defined]
    method = {"linformer": Linformer(projection), "nystrom": Nystrom(5, iterations=2), "performer": Performer(24)}[name]
    masks = {"linformer": Everything(), "nystrom": Everything(), "performer": Causal()}
    mask = Lengths(torch.tensor([41, 19])) & masks[name]

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, position=Rotary(), mask=mask, method=method)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    wrt = (q, k, v, projection) if name == "linformer" else (q, k, v)
    assert_same(compiled(q, k, v), run(q, k, v), wrt, 1e-5)


def test_linformer_drops_the_weights_of_projected_keys() -> None:
    q, k, v = tensors(300, 8, value_dim=8)
    v = torch.eye(8, dtype=torch.float64).expand(2, 4, 8, 8)
    seeded = torch.Generator().manual_seed(0)
    actual = attend(q, k, v, method=Linformer(torch.eye(8)), dropout=0.25, generator=seeded)
    kept = actual != 0
    assert abs(float(kept.double().mean()) - 0.75) < 0.02
    assert_close(actual[kept], attend(q, k, v)[kept] / 0.75)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_error_is_the_relative_distance(dtype: torch.dtype) -> None:
    q, k, v = (x.to(dtype) for x in tensors(30, 30))
    exact, actual = (attend(*(x.detach().double() for x in (q, k, v)), method=m) for m in (None, Nystrom(4)))
    error = Nystrom(4).error(q, k, v)
    assert isinstance(error, float)
    assert error == pytest.approx(float((actual - exact).norm() / exact.norm()), rel=1e-4)
    assert Exact().error(q, k, v, mask=Causal()) == 0.0
    assert Nystrom(4).error(q, k, 0 * v) == 0.0
    assert Performer(8).error(q, k, v, mask=Causal(), score=Cosine(2.0)) < 1.0
    assert Nystrom(4).error(q[:, :, :0], k, v) == 0.0
    with pytest.raises(BadInput, match="must be a tensor"):
        Nystrom(4).error(None, k, v)  # type: ignore[arg-type]


def test_memory_is_linear_in_the_tokens() -> None:
    """At 20,000 tokens the weights alone would take 3.2 GB; no tensor that is made comes near."""
    q, k, v = (x.detach().float() for x in tensors(20_000, 20_000, batch=1, heads=2, kv_heads=1))
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            largest = max(largest, out.numel() if isinstance(out, Tensor) else 0)
            return out

    with Watch():
        for method, mask in ((Nystrom(32), None), (Performer(32), None), (Performer(32), Causal())):
            assert attend(q, k, v, mask=mask, method=method).isfinite().all()
    assert largest <= 2 * 20_000 * 130


REFUSALS: list[tuple[Method, dict[str, Score | Position | Mask | float], str]] = [
    (method, parts, message)
    for method in (Linformer(torch.ones(2, 6)), Nystrom(2), Performer(4))
    for parts, message in (
        ({"position": Alibi()}, "Alibi, which depends on the distance"),
        ({"position": Bias(torch.zeros(4, 3))}, "Bias, which depends on the distance"),
        ({"position": Shaw(torch.zeros(4, 3, 8))}, "Shaw, which depends on the distance"),
        (
            {"position": TransformerXL(torch.zeros(4, 3, 8), torch.zeros(4, 8), torch.zeros(4, 8))},
            "TransformerXL, which depends",
        ),
        ({"mask": Window(2)}, r"cannot apply the mask Window\(before=2\)"),
        ({"mask": Pairs(torch.ones(6, 6, dtype=torch.bool))}, "cannot apply the mask Pairs"),
        ({"mask": Causal() | Lengths(torch.tensor([3, 4]))}, "cannot apply the mask"),
        ({"mask": ~Lengths(torch.tensor([3, 4]))}, "cannot apply the mask"),
    )
]
REFUSALS += [
    (method, parts, message)
    for method in (Nystrom(2), Nystrom(9), Performer(4))
    for parts, message in (
        ({"score": Additive(torch.ones(4, 8))}, "Additive is none"),
        ({"dropout": 0.1}, r"never forms the weights, so dropout \(0.1\)"),
    )
]
REFUSALS += [
    (method, {"mask": Causal()}, "cannot apply the mask Causal.*early and late")
    for method in (Linformer(torch.ones(2, 6)), Nystrom(2), Nystrom(9))
]


@pytest.mark.parametrize(("method", "parts", "message"), REFUSALS)
def test_refuses_with_the_reason(method: Method, parts: dict, message: str) -> None:
    q, k, v = (x.detach().float() for x in tensors(6, 6))
    with pytest.raises(Unsupported, match=message):
        attend(q, k, v, method=method, **parts)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Nystrom(0), "landmarks is 0; it must be a whole number of at least 1"),
        (lambda: Nystrom(4, iterations=0), "iterations is 0"),
        (lambda: Nystrom(2.5), "landmarks is 2.5"),  # type: ignore[arg-type]
        (lambda: Performer(0), "features is 0"),
        (lambda: Performer(8, seed=-1), "seed is -1"),
        (lambda: Linformer([1.0]), "keys is a list; it must be a tensor"),  # type: ignore[arg-type]
        (lambda: Linformer(torch.ones(3)), r"keys has shape \[3\]"),
        (lambda: Linformer(torch.ones(2, 3).long()), "floating point"),
        (lambda: Linformer(torch.ones(2, 3), torch.ones(3, 3)), r"\[2, 3\] and its values \[3, 3\]"),
        (lambda: Linformer(torch.ones(0, 3)), "projected size is 0"),
    ],
)
def test_bad_fields(make: Callable[[], Method], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        make()


@pytest.mark.parametrize("shape", [(2, 7), (3, 2, 6), (2, 2, 7)])
def test_linformer_must_fit_the_keys(shape: tuple[int, ...]) -> None:
    q, k, v = (x.detach() for x in tensors(6, 6, kv_heads=2))
    want = r"with k \[2, 2, 6, 8\] they must be \[projected, 6\] or \[2, projected, 6\]"
    with pytest.raises(BadInput, match=want):
        attend(q, k, v, method=Linformer(torch.ones(shape)))
    if shape[-1] == 6:
        with pytest.raises(BadInput, match="Linformer's values are"):
            attend(q, k, v, method=Linformer(torch.ones(2, 6), torch.ones(shape)))
    with pytest.raises(BadInput, match="q is on cpu and Linformer's keys on meta"):
        attend(q, k, v, method=Linformer(torch.ones(2, 6, device="meta")))


@pytest.mark.parametrize("name", METHODS)
def test_empty_calls_give_zeros(name: str) -> None:
    q, k, v = tensors(5, 0)
    assert torch.equal(attend(q, k, v, method=some(name, 1)), torch.zeros(2, 4, 5, 6, dtype=torch.float64))


def test_they_print_as_the_line_that_makes_them() -> None:
    assert repr(Nystrom(64)) == "Nystrom(landmarks=64)"
    assert repr(Performer(256, seed=7)) == "Performer(features=256, seed=7)"
    assert repr(Linformer(torch.ones(2, 6))) == "Linformer(keys=<float32 [2, 6]>)"
    assert all(kind.formula for kind in (Exact, Linformer, Nystrom, Performer))


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "mask"), WITH_MASKS)
def test_the_gpu_agrees_and_repeats(name: str, mask: Mask | None) -> None:
    q, k, v = tensors(301, 301, kv_heads=2)
    method = some(name, 301)
    there = Linformer(method.keys.cuda()) if isinstance(method, Linformer) else method
    moved = tuple(x.detach().cuda().requires_grad_() for x in (q, k, v))
    actual, again = (attend(*moved, mask=mask, method=there) for _ in range(2))
    want = attend(q, k, v, mask=mask, method=method)
    assert torch.equal(actual, again)
    assert_close(actual.cpu(), want, 1e-9)
    mine = [torch.autograd.grad(y.square().sum(), moved) for y in (actual, again)]
    theirs = torch.autograd.grad(want.square().sum(), (q, k, v))
    for one, two, other in zip(*mine, theirs, strict=True):
        assert torch.equal(one, two)
        assert_close(one.cpu(), other, 1e-9)
