"""The page of graphs in a real browser, on the shipped club of 34 people."""

from __future__ import annotations

import pytest
import torch

from regard.errors import BadInput
from regard.lab.api import graph
from regard.lab.server.jobs import Job

ASK = {"model": "karate", "input": {"example": "karate.npz"}}


def row_of(lab, attention: int, head: int, node: int) -> dict[int, float]:
    edges, weights = lab.capture(ASK, Job()).attentions[attention].edge_weights()
    mine = edges[1] == node
    return dict(zip(edges[0, mine].tolist(), weights[head, mine].tolist(), strict=True))


def test_a_node_looks_at_its_neighbours_and_itself_with_weights_that_sum_to_one(lab):
    capture = lab.capture(ASK, Job())
    edges = capture.metadata["edges"]
    for node in (0, 11, 33):
        found = graph.around(lab, {**ASK, "attention": 0, "head": 1, "node": node}, Job())
        neighbours = set(edges[0, edges[1] == node].tolist()) | {node}
        assert set(found["sources"].tolist()) == neighbours
        assert torch.allclose(found["sums"], torch.ones_like(found["sums"]), atol=1e-6)
        dense = capture.attentions[0].weights(1, (node, node + 1))[0]
        assert torch.allclose(dense[found["sources"].long()], found["weights"][1].to(dense), atol=1e-6)
        assert torch.allclose(
            found["self"], dense.new_tensor([row_of(lab, 0, h, node)[node] for h in range(4)]), atol=1e-6
        )


def test_hops_follow_the_edges_backwards_and_rings_keep_them():
    edges = torch.tensor([[1, 2, 3, 0, 4], [0, 1, 1, 4, 4]])  # 1 → 0, 2 → 1, 3 → 1, 0 → 4
    assert graph.count_hops(edges, 0, 5, 9).tolist() == [0, 1, 2, 2, -1]
    assert graph.count_hops(edges, 0, 5, 1).tolist() == [0, 1, -1, -1, -1]
    hops = graph.count_hops(edges, 0, 5, 2)
    shown = graph.choose_neighbourhood(edges, torch.tensor([0.5, 0.2, 0.3, 1.0, 1.0]), hops, 0)
    assert shown.tolist() == [0, 1, 2, 3]
    places = graph.ring_layout(shown, hops[shown], edges, 0)
    assert torch.allclose(places.norm(dim=-1), torch.tensor([0.0, 0.5, 1.0, 1.0]), atol=1e-6)


def test_the_layout_is_the_same_each_time_and_fills_its_box():
    edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    places = graph.spring_layout(4, edges)
    assert torch.equal(places, graph.spring_layout(4, edges))
    assert (
        torch.allclose(places.abs().amax(0), torch.ones(2))
        and torch.cdist(places, places).fill_diagonal_(9).min() > 0.5
    )


@pytest.mark.parametrize("bad", [{"node": 34}, {"node": -1}, {"node": "3"}, {"head": 4}, {"attention": 2}])
def test_what_is_not_there_is_refused(lab, bad):
    with pytest.raises(BadInput):
        graph.around(lab, {**ASK, "attention": 0, "head": 0, "node": 0, **bad}, Job())


@pytest.mark.browser
def test_the_page_shows_the_true_weights_of_the_chosen_node(open_lab, lab):
    page = open_lab("graph?model=karate&attention=0&head=2&node=5&lang=en")
    found = page.evaluate("window.lab.read()")
    wanted = row_of(lab, 0, 2, 5)
    assert {n: pytest.approx(w, abs=1e-6) for n, w in wanted.items()} == dict(
        zip(found["sources"], found["weights"], strict=True)
    )
    assert found["drawn"] == 34 and abs(found["sum"] - 1) < 1e-6
    lines = page.locator(".edge.in")
    assert lines.count() == len(wanted)
    drawn = {int(lines.nth(n).get_attribute("data-from")): lines.nth(n) for n in range(lines.count())}
    for n, weight in wanted.items():
        assert float(drawn[n].get_attribute("data-weight")) == pytest.approx(weight, abs=1e-6)
        width = drawn[n].evaluate("node => parseFloat(getComputedStyle(node).strokeWidth)")
        assert width == pytest.approx(max(0.8, 14 * weight), abs=0.01)
    assert "1.000000" in page.locator(".row-sum").inner_text()


@pytest.mark.browser
def test_keys_and_clicks_choose_nodes_and_heads(open_lab):
    page = open_lab("graph?model=karate&node=3&lang=zh")
    page.locator('.nodes [tabindex="0"]').focus()
    page.keyboard.press("ArrowRight")
    page.ready()
    page.wait_for_function("() => window.lab.read().node === 4")
    assert "node=4" in page.url and "图网络" in page.locator("h1").inner_text()
    page.locator(".node", has_text="33").first.click()
    page.wait_for_function("() => window.lab.read().node === 33")
    page.locator("table >> text=头 3").click()
    page.wait_for_function("() => window.lab.read().head === 3")
