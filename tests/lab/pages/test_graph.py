"""The page of graphs in a real browser, on the shipped club of 34 people."""

from __future__ import annotations

import pytest
import torch

from regard.errors import BadInput
from regard.lab.api import graph
from regard.lab.server.jobs import Job

ASK = {"model": "karate", "input": {"example": "karate.npz"}}
CORA = {"model": "cora", "input": {"example": "cora.npz"}}


def row_of(lab, attention: int, head: int, node: int) -> dict[int, float]:
    edges, weights = lab.capture(ASK, Job()).attentions[attention].edge_weights()
    mine = edges[1] == node
    return dict(zip(edges[0, mine].tolist(), weights[head, mine].tolist(), strict=True))


def test_a_node_looks_at_its_neighbours_and_itself_with_weights_that_sum_to_one(lab):
    capture = lab.capture(ASK, Job())
    edges = capture.metadata["edges"]
    for node in (0, 11, 33):
        answer = graph.around(lab, {**ASK, "attention": 0, "node": node}, Job())
        neighbours = set(edges[0, edges[1] == node].tolist()) | {node}
        assert set(answer["sources"].tolist()) == neighbours
        assert torch.allclose(answer["sums"], torch.ones_like(answer["sums"]), atol=1e-6)
        dense = capture.attentions[0].weights(1, (node, node + 1))[0]
        assert torch.allclose(dense[answer["sources"].long()], answer["weights"][1].to(dense), atol=1e-6)
        assert torch.allclose(
            answer["self"], dense.new_tensor([row_of(lab, 0, h, node)[node] for h in range(4)]), atol=1e-6
        )


def test_hops_follow_the_edges_backwards():
    edges = torch.tensor([[1, 2, 3, 0, 4], [0, 1, 1, 4, 4]])  # 1 → 0, 2 → 1, 3 → 1, 0 → 4
    assert graph.count_hops(edges, 0, 5, 9).tolist() == [0, 1, 2, 2, -1]
    assert graph.count_hops(edges, 0, 5, 1).tolist() == [0, 1, -1, -1, -1]
    hops = graph.count_hops(edges, 0, 5, 2)
    shown = graph.choose_neighbourhood(edges, torch.tensor([0.5, 0.2, 0.3, 1.0, 1.0]), hops, 0)
    assert shown.tolist() == [0, 1, 2, 3]


def test_the_layout_is_the_same_each_time_and_fills_its_box():
    edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    places = graph.spring_layout(4, edges)
    assert torch.equal(places, graph.spring_layout(4, edges))
    assert (
        torch.allclose(places.abs().amax(0), torch.ones(2))
        and torch.cdist(places, places).fill_diagonal_(9).min() > 0.5
    )


@pytest.mark.parametrize("bad", [{"node": 34}, {"node": -1}, {"node": "3"}, {"attention": 2}])
def test_what_is_not_there_is_refused(lab, bad):
    with pytest.raises(BadInput):
        graph.around(lab, {**ASK, "attention": 0, "node": 0, **bad}, Job())


@pytest.mark.parametrize("hops", [3, -1, "2", None, True])
def test_hops_that_are_none_are_refused(lab, hops):
    with pytest.raises(BadInput, match="hops"):
        graph.around(lab, {**CORA, "node": 0, "hops": hops}, Job())


def test_cora_opens_with_a_neighbourhood_of_several_classes(lab):
    answer = graph.run(lab, CORA, Job())
    around = graph.around(lab, {**CORA, "node": answer["start"], "hops": 2}, Job())
    assert 8 <= len(around["sources"]) <= 17 and 12 < len(around["shown"]) <= graph.MAX_NEIGHBOURHOOD
    assert len(answer["class"][around["sources"].long()].unique()) > 1
    assert (
        around["places"].abs().amax() <= 1
        and torch.cdist(around["places"], around["places"]).fill_diagonal_(9).min() > 0
    )
    assert [row.shape[1] for row in around["every"]] == [len(around["sources"])] * len(answer["attentions"])


@pytest.mark.browser
def test_the_page_shows_the_true_weights_of_the_chosen_node(open_lab, lab):
    page = open_lab("graph?model=karate&attention=0&head=2&node=5&lang=en")
    answer = page.evaluate("window.lab.read()")
    wanted = row_of(lab, 0, 2, 5)
    assert {n: pytest.approx(w, abs=1e-6) for n, w in wanted.items()} == dict(
        zip(answer["sources"], answer["weights"], strict=True)
    )
    assert answer["drawn"] == 34 and abs(answer["sum"] - 1) < 1e-6
    lines = page.locator(".edge.in")
    assert lines.count() == len(wanted)
    drawn = {int(lines.nth(n).get_attribute("data-from")): lines.nth(n) for n in range(lines.count())}
    for n, weight in wanted.items():
        assert float(drawn[n].get_attribute("data-weight")) == pytest.approx(weight, abs=1e-6)
        width = drawn[n].evaluate("node => parseFloat(getComputedStyle(node).strokeWidth)")
        assert width == pytest.approx(min(12, max(0.8, 24 * weight)), abs=0.01)
    assert float(page.locator(".row-sum").get_attribute("title")) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.browser
def test_keys_and_clicks_choose_nodes_and_heads(open_lab):
    page = open_lab("graph?model=karate&node=3&lang=zh")
    page.locator('.nodes [tabindex="0"]').focus()
    page.keyboard.press("ArrowRight")
    page.ready()
    page.wait_for_function("() => window.lab.read().node === 4")
    assert "node=4" in page.address() and "图网络" in page.locator("h1").inner_text()
    page.locator(".node", has_text="33").first.click()
    page.wait_for_function("() => window.lab.read().node === 33")
    page.locator("summary >> text=各个头").click()
    page.locator("table >> text=头 3").click()
    page.wait_for_function("() => window.lab.read().head === 3")
    page.locator(".film button").nth(1).click()
    page.wait_for_function("() => window.lab.read().head === 1")


@pytest.mark.browser
def test_the_node_under_the_pointer_shows_its_weights_and_nodes_can_be_dragged(open_lab, lab):
    page = open_lab("graph?model=karate&node=3&head=1&lang=en")
    page.locator("[data-node='33'] circle").hover()
    page.ready()
    assert page.evaluate("window.lab.read()")["hovered"] == 33
    wanted, lines = row_of(lab, 0, 1, 33), page.locator(".edge.in")
    drawn = {int(one.get_attribute("data-from")): float(one.get_attribute("data-weight")) for one in lines.all()}
    assert drawn == {n: pytest.approx(weight, abs=1e-6) for n, weight in wanted.items()}
    box = page.locator("[data-node='33'] circle").bounding_box()
    before = page.evaluate("window.lab.read().places[33]")
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 60, box["y"] + 40, steps=4)
    page.mouse.up()
    page.ready()
    after = page.evaluate("window.lab.read().places[33]")
    assert after[0] > before[0] + 20 and page.evaluate("window.lab.read().node") == 3


OVERLAPS = """() => {
  const discs = [...document.querySelectorAll(".graph .node circle")].map(one => one.getBBox());
  const middle = box => [box.x + box.width / 2, box.y + box.height / 2];
  const apart = (a, b) => Math.hypot(...middle(a).map((x, n) => x - middle(b)[n]));
  const numbers = [...document.querySelectorAll(".graph .edge-number")].map(one => one.getBBox());
  let nodes = 0, covered = 0;
  discs.forEach((a, n) => discs.slice(n + 1).forEach(b => { nodes += apart(a, b) < (a.width + b.width) / 2; }));
  numbers.forEach((a, n) => { covered += numbers.slice(n + 1).some(b => apart(a, b) < 10) || discs.some(b => apart(a, b) < b.width / 2); });
  return [nodes, covered, numbers.length];
}"""  # noqa: E501


@pytest.mark.browser
@pytest.mark.parametrize(("model", "width"), [("karate", 1280), ("cora", 1440), ("karate", 390)])
def test_no_node_covers_another_and_no_number_a_node(open_lab, model, width):
    page = open_lab(f"graph?model={model}&lang=en", width=width)
    nodes, covered, numbers = page.evaluate(OVERLAPS)
    assert nodes == covered == 0 and numbers >= 4
