"""Which kernels a GPU gets for a call is decided by measured costs."""

import json
from dataclasses import asdict

import pytest
import torch

import regard as rg
from regard.attention import costs
from regard.attention.call import make_call
from regard.attention.costs import KernelCosts, PassCosts
from regard.attention.tracing import cuda_graph_mode

COSTS = PassCosts(
    tensor=KernelCosts(60.0, {64: 1.64, 128: 2.28}),
    tiles=KernelCosts(80.0, {64: 1.14, 128: 1.78}),
    products=KernelCosts(90.0, {64: 13.2, 128: 16.4}),
    lists=3600.0,
    learned=500.0,
)


def call_of(tokens: int, mask=None, batch: int = 32, trains: bool = False, queries=None, kv_heads=4, dim=64, **parts):
    """A call of four heads whose numbers take no memory."""
    dtype = parts.pop("dtype", torch.float32)
    sizes = (4, queries or tokens), (kv_heads, tokens), (kv_heads, tokens)
    q, k, v = (torch.zeros(1, 1, 1, 1, dtype=dtype).expand(batch, *size, dim) for size in sizes)
    q = q.detach().requires_grad_(trains)
    return make_call(q, k, v, mask=mask, **parts)


def chosen(call, plain=False, made=0, tiled=True) -> str:
    """What `auto` takes on a GPU, where our kernels can run the call if `tiled`."""
    if costs.fused_reason(call, plain, made, tiled) is None:
        return "sdpa"
    if tiled and costs.tiles_reason(call) is None:
        return "triton"
    return "dense" if costs.products_reason(call, tiled) is None else "neither"


@pytest.fixture(autouse=True)
def fixed_costs(monkeypatch):
    kinds = {f"{size} {mode}": COSTS for size in (2, 4) for mode in ("forward", "training")}
    monkeypatch.setattr(costs, "read_costs", lambda: kinds)


def test_a_pair_costs_what_was_measured_for_its_dims():
    costs = KernelCosts(1.0, {16: 1.0, 64: 3.0, 128: 4.0})
    times = [costs.pair_time(dim) for dim in (8, 16, 40, 64, 96, 128, 256)]
    assert times == [1.0, 1.0, 2.0, 3.0, 3.5, 4.0, 8.0]
    assert costs.time(2e6, 64) == 6.0 and costs.time(1.0, 64) == 1.0


def test_short_calls_get_a_mask_tensor_and_long_sparse_ones_tiles():
    assert chosen(call_of(256, rg.Window(8, 8), batch=1)) == "sdpa"
    assert chosen(call_of(4096, rg.Window(8, 8))) == "triton"


def test_a_mask_that_visits_most_tiles_is_no_reason_for_tiles():
    slower = PassCosts(COSTS.tensor, KernelCosts(80.0, {64: 3.6}), COSTS.products, 3600.0, 500.0)
    window = rg.Window(4000, 4000)
    assert chosen(call_of(4096, window)) == "triton"
    costs.read_costs()["4 forward"] = slower
    assert chosen(call_of(4096, window)) == "sdpa"


def test_masks_of_a_batch_pay_for_their_lists():
    lengths = rg.Lengths(torch.full((32,), 200))
    assert chosen(call_of(1024, lengths)) == "sdpa"  # 221 µs, beside 380 with the lists' share
    one = call_of(1024, rg.Lengths(torch.tensor([200])), batch=1)
    assert costs.tiles_time(one, 1e9) == 80.0 + 3600.0 / costs.LAYERS
    assert chosen(call_of(4096, lengths)) == "triton"


def test_plain_attention_of_half_types_is_torchs_and_of_float32_whoever_is_faster():
    assert chosen(call_of(4096, dtype=torch.bfloat16), plain=True) == "sdpa"
    assert chosen(call_of(4096), plain=True) == "triton"
    assert chosen(call_of(128, batch=1), plain=True) == "sdpa"


def test_grouped_heads_of_float32_leave_torchs_kernels():
    assert chosen(call_of(128, batch=1, kv_heads=2), plain=True) == "triton"
    assert chosen(call_of(128, batch=1, kv_heads=2, dtype=torch.bfloat16), plain=True) == "sdpa"
    assert chosen(call_of(128, batch=1, kv_heads=2, dim=512), plain=True, tiled=False) == "dense"


def test_few_queries_over_many_keys_keep_torchs_kernels_waiting():
    """One block of queries for each head leaves most multiprocessors without work."""
    long = call_of(65536, rg.Window(60000, 0), batch=1, queries=1, dtype=torch.bfloat16)
    assert costs.fused_time(long, plain=False) > 100 * COSTS.tensor.time(costs.count_pairs(long), 64) / 60
    assert chosen(long) == "triton"
    some = call_of(65536, rg.Window(60000, 0), batch=1, queries=40, dtype=torch.bfloat16)
    assert chosen(some) == "dense"  # 12 million weights
    more = call_of(65536, rg.Window(60000, 0), batch=1, queries=160, dtype=torch.bfloat16)
    assert chosen(more) != "dense"  # more than may be stored where tiles need none of it


def test_wide_heads_without_tiles_get_products_while_their_weights_fit():
    learned = rg.Bias(torch.zeros(4, 9, requires_grad=True), zero=4)
    assert costs.products_reason(call_of(2048, batch=1, dim=512, position=learned), tiled=False) is None
    assert costs.products_reason(call_of(16384, batch=1, dim=512, position=learned), tiled=False) is not None


def test_a_table_that_is_learned_costs_our_kernels_more():
    learned = rg.Bias(torch.zeros(4, 9, requires_grad=True), zero=4)
    fixed = rg.Bias(torch.zeros(4, 9), zero=4)
    times = [costs.tiles_time(call_of(64, batch=1, trains=True, position=x), 1e9) for x in (learned, fixed)]
    assert times == [580.0, 80.0]


def test_products_are_for_numbers_by_pair_outside_graphs():
    vectors = rg.Shaw(torch.zeros(4, 9, 64), zero=4)
    assert costs.products_time(call_of(64, batch=1, position=vectors), tiled=False) == float("inf")
    assert costs.products_time(call_of(64, batch=1), tiled=False) == 90.0
    with cuda_graph_mode():
        assert costs.products_time(call_of(64, batch=1), tiled=False) == float("inf")


def test_the_recorded_measurement_has_every_kind_of_call():
    recorded = json.loads(costs.RECORDED.read_text())
    assert recorded["device"] and set(recorded["costs"]) == {"2 forward", "2 training", "4 forward", "4 training"}
    for kind in recorded["costs"].values():
        made = PassCosts.from_dict(kind)
        for kernel in (made.tensor, made.tiles, made.products):
            assert kernel.host > 0 and all(time > 0 for time in kernel.pair.values())


def test_a_measurement_of_this_machine_replaces_the_recorded_one(tmp_path, monkeypatch):
    monkeypatch.undo()
    path = tmp_path / "gpu_costs.json"
    monkeypatch.setenv("REGARD_GPU_COSTS", str(path))
    costs.read_costs.cache_clear()
    recorded = json.loads(costs.RECORDED.read_text())["costs"]["2 forward"]
    assert costs.read_costs()["2 forward"] == PassCosts.from_dict(recorded)
    path.write_text(json.dumps({"costs": {"2 forward": asdict(COSTS)}}))
    costs.read_costs.cache_clear()
    assert costs.read_costs() == {"2 forward": COSTS}
    path.write_text('{"costs": {"2 forward": {"lists": 1}}}')
    costs.read_costs.cache_clear()
    with pytest.raises(rg.BadInput, match=r"gpu_costs.json has no costs of attention .* regard bench --calibrate"):
        costs.read_costs()
    costs.read_costs.cache_clear()


@pytest.mark.parametrize(
    ("dtype", "dim", "learned"),
    [("float32", 256, True), ("float32", 64, True), ("bfloat16", 256, True), ("float32", 256, False)],
)
def test_wide_heads_of_float32_leave_a_learned_table_to_the_formula(dtype, dim, learned):
    q, k, v = (torch.zeros(1, 2, 40, dim, dtype=getattr(torch, dtype), requires_grad=True) for _ in range(3))
    call = make_call(q, k, v, position=rg.Bias(torch.zeros(2, 9, requires_grad=learned), zero=4))
    assert costs.learns_wide_table(call) == (learned and dtype == "float32" and dim > 128)


def test_additive_rows_serve_a_decoder_step_and_few_keys():
    assert costs.few_additive_queries(1, 4000, 64) and costs.few_additive_queries(55, 66, 256)
    assert not costs.few_additive_queries(55, 4000, 256) and costs.few_additive_queries(55, 4000, 512)
