"""Which keys Formula sends where there are many: a node's neighbours, those around a place, and the heaviest."""

from __future__ import annotations

import pytest
import torch

from regard import BadInput
from regard.lab.api.formula import MAX_KEYS, NEARBY
from regard.lab.server.jobs import Job

from ..api_call import ask

NODES = 1900
LONG = {"model": "bert", "input": {"text": "one two three four five six seven eight " * 70}}


def graph() -> dict:
    """A ring with one node, far down the list, that looks at some all over it."""
    ring = [[n, (n + 1) % NODES] for n in range(NODES)]
    return {"edges": [*ring, [3, 1700], [900, 1700], [1899, 1700]], "nodes": NODES}


def test_whom_a_node_looks_at_is_always_sent(lab):
    given = {"model": "cora", "input": graph()}
    row = ask(lab, "formula/row", **given, attention=0, head=3, query=1700)
    assert row["places"].tolist() == [3, 900, 1699, 1700, 1899] and row["of"] == NODES
    assert row["allowed"].all() and float(row["weight"].sum()) == pytest.approx(1.0, abs=1e-6) == row["sum"]
    attention = lab.capture(given, Job()).attentions[0]
    whole = attention.row(3, 1700)
    places = row["places"].long()
    for name in ("k", "v", "raw", "scaled", "score", "weight"):
        torch.testing.assert_close(row[name], whole[name][places].float(), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close((row["weight"].double() @ row["v"].double()).float(), row["mixed"], atol=1e-6, rtol=1e-5)


def test_keys_around_the_query_and_around_a_key_can_be_reached(lab):
    count = ask(lab, "formula/run", **LONG)["attentions"][0]["keys"]
    assert count > MAX_KEYS
    row = ask(lab, "formula/row", **LONG, attention=0, head=1, query=count - 5)
    assert len(row["places"]) == MAX_KEYS and row["places"].diff().min() > 0
    near = set(range(count - 5 - NEARBY, count))
    assert near <= set(row["places"].tolist())
    other = ask(lab, "formula/row", **LONG, attention=0, head=1, query=count - 5, key=30)
    assert near | set(range(30 + NEARBY + 1)) <= set(other["places"].tolist())
    weights = lab.capture(LONG, Job()).attentions[0].weights(1)[count - 5]
    assert int(weights.argmax()) in row["places"].tolist()
    torch.testing.assert_close(other["weight"], weights[other["places"].long()].float(), atol=1e-6, rtol=0)


def test_a_span_can_be_asked_for_and_too_long_a_one_not(lab):
    row = ask(lab, "formula/row", **LONG, attention=0, head=0, query=2, keys=[7, 12])
    assert row["places"].tolist() == [7, 8, 9, 10, 11]
    with pytest.raises(BadInput, match="the limit is 512"):
        ask(lab, "formula/row", **LONG, attention=0, head=0, query=2, keys=[0, 513])
    with pytest.raises(BadInput, match="key is 100000"):
        ask(lab, "formula/row", **LONG, attention=0, head=0, query=2, key=100_000)


def test_few_keys_are_all_sent(lab):
    few = {"model": "bert", "input": {"text": "one two three"}}
    row = ask(lab, "formula/row", **few, attention=0, head=0, query=1)
    assert row["places"].tolist() == list(range(row["of"]))


def test_a_region_of_a_map_and_what_lies_outside_it(lab):
    few = {"model": "bert", "input": {"text": "one two three four five six"}}
    whole = lab.capture(few, Job()).attentions[1].weights(2)
    part = ask(lab, "heads/map", **few, attention=1, head=2, rows=[1, 4], keys=[2, 5])
    torch.testing.assert_close(part["weights"], whole[1:4, 2:5].float(), atol=1e-6, rtol=0)
    torch.testing.assert_close(part["outside"], 1 - whole[1:4, 2:5].sum(-1).float(), atol=1e-6, rtol=0)
    pooled = ask(lab, "heads/map", **few, attention=1, head=2, most=4)
    assert pooled["pooled"] and pooled["weights"].shape == whole.shape  # fewer than 256 each way: a cell each
    torch.testing.assert_close(pooled["weights"], whole.float(), atol=1e-6, rtol=0)
    with pytest.raises(BadInput, match="rows is"):
        ask(lab, "heads/map", **few, attention=1, head=2, rows=[4, 1])


@pytest.mark.parametrize(("model", "text"), [("bert", "one two three four"), ("llama", "one two three four")])
def test_projections_lead_from_the_input_to_q_k_v_and_on_to_the_output(lab, model, text):
    given = {"model": model, "input": {"text": text}}
    attention = lab.capture(given, Job()).attentions[1]
    head, query = 3, 2
    answer = ask(lab, "formula/projections", **given, attention=1, head=head, query=query)
    assert answer["known"] and answer["places"].tolist() == list(range(attention.keys))
    row = ask(lab, "formula/row", **given, attention=1, head=head, query=query)

    def project(x, name):
        bias = 0 if answer[f"b_{name}"] is None else answer[f"b_{name}"].double()
        return x.double() @ answer[f"w_{name}"].double().T + bias

    torch.testing.assert_close(project(answer["x_query"], "q"), answer["q"].double(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(project(answer["x"], "v"), row["v"].double(), atol=1e-5, rtol=1e-5)
    assert answer["transformed"] == (model == "llama")  # rotary positions turn q and k after the projection
    if model == "bert":
        torch.testing.assert_close(answer["q"], row["q"], atol=1e-6, rtol=0)
        torch.testing.assert_close(project(answer["x"], "k"), row["k"].double(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(project(answer["concat"], "o"), answer["y"].double(), atol=1e-5, rtol=1e-5)
    width = row["v"].shape[1]
    torch.testing.assert_close(answer["concat"][head * width : (head + 1) * width], row["output"], atol=1e-6, rtol=0)
    torch.testing.assert_close(answer["w_head"], answer["w_o"][:, head * width : (head + 1) * width])


def test_models_without_projections_say_so(lab):
    assert ask(lab, "formula/projections", model="meanings", input={"text": "猫追狗"}, query=0) == {"known": False}
