"""Which kernel a GPU gets for a mask is decided by measured costs."""

import json

import pytest
import torch

import regard as rg
from regard.attention import costs
from regard.attention.call import make_call
from regard.attention.costs import PassCosts, assume_costs, dense_is_faster

COSTS = PassCosts(dense_host=60.0, dense_pair=1.0, tiles_host=80.0, tiles_pair=1.5, lists=3600.0)


def call_of(tokens: int, mask: rg.Mask, batch: int = 1, trains: bool = False):
    q, k, v = (torch.zeros(batch, 1, tokens, 64, requires_grad=trains) for _ in range(3))
    return make_call(q, k, v, mask=mask)


@pytest.fixture(autouse=True)
def fixed_costs():
    with assume_costs({f"{size} {mode}": COSTS for size in (2, 4) for mode in ("forward", "training")}):
        yield


def test_short_calls_get_a_mask_tensor_and_long_sparse_ones_tiles():
    assert dense_is_faster(call_of(256, rg.Window(8, 8)))
    assert not dense_is_faster(call_of(16384, rg.Window(8, 8)))  # 268 µs for all pairs, 80 for 1 % of them


def test_a_mask_that_visits_most_tiles_is_no_reason_for_tiles():
    assert dense_is_faster(call_of(16384, rg.Window(16000, 16000)))


def test_masks_of_a_batch_pay_for_their_lists():
    lengths = rg.Lengths(torch.tensor([200]))
    assert dense_is_faster(call_of(16384, lengths))  # 268 µs, beside 380 with the lists' share
    assert COSTS.tiles(0.0, True) == 80.0 + 3600.0 / costs.LAYERS


def test_the_recorded_measurement_has_every_kind_of_call():
    recorded = json.loads(costs.RECORDED.read_text())
    assert recorded["device"] and set(recorded["costs"]) == {"2 forward", "2 training", "4 forward", "4 training"}
    assert all(value > 0 for kind in recorded["costs"].values() for value in kind.values())


def test_a_measurement_of_this_machine_replaces_the_recorded_one(tmp_path, monkeypatch):
    path = tmp_path / "gpu_costs.json"
    monkeypatch.setenv("REGARD_GPU_COSTS", str(path))
    costs.read_costs.cache_clear()
    assert (
        costs.read_costs()["2 forward"].dense_host
        == json.loads(costs.RECORDED.read_text())["costs"]["2 forward"]["dense_host"]
    )
    path.write_text(json.dumps({"costs": {"2 forward": vars(COSTS)}}))
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
