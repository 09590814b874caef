"""What is kept of a pass is what the model did: against `watch`, with edits, for every kind of model."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import regard as rg
from regard.lab.api import formula, heads
from regard.lab.inputs.model_input import ModelInput, Token
from regard.lab.inspect.capture import Capture, capture
from regard.lab.lab import Lab
from regard.lab.server.jobs import Job
from regard.nn.explain import value_norms

from ..conftest import SENTENCE

TOLERANCE = 1e-6


def ask(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "input": {"text": SENTENCE}, **more}


def models() -> dict[str, tuple[Any, dict[str, Any], str]]:
    """A random model of each kind, and what it is called with."""
    torch.manual_seed(0)
    tower = {"dim": 16, "layers": 2, "heads": 4, "hidden": 16}
    graph = {"nodes": torch.randn(9, 5), "edges": torch.randint(0, 9, (2, 20))}
    text = {"tokens": torch.randint(0, 30, (1, 11))}
    grouped = {**tower, "kv_heads": 2, "head_dim": 4, "vocabulary": 30, "window": 4}
    distinct = torch.randperm(81)[:20]
    featured = graph | {"edges": torch.stack([distinct // 9, distinct % 9]), "edge_features": torch.randn(20, 3)}
    return {
        "bert": (rg.models.bert(**tower, vocabulary=30, places=20), text, "source"),
        "llama": (rg.models.llama(**tower, kv_heads=2, vocabulary=30), text, "source"),
        "t5": (rg.models.t5(**tower, vocabulary=30), text | {"targets": torch.randint(0, 30, (1, 7))}, "source"),
        "xl": (rg.models.transformer_xl(**tower, vocabulary=30, memory=8), text, "source"),
        "longformer": (rg.models.longformer(**tower, vocabulary=30, places=40, window=4), text, "source"),
        "vit": (rg.models.vit(**tower, size=8, patch=4, classes=3), {"images": torch.randn(1, 3, 8, 8)}, "image"),
        "gat": (rg.models.gat(features=5, classes=3, dim=8, heads=2), graph, "nodes"),
        "gatv2": (rg.models.gatv2(features=5, classes=3, dim=8, heads=2), graph, "nodes"),
        "gat of edges": (rg.models.gat(features=5, classes=3, dim=8, heads=2, edge_features=3), featured, "nodes"),
        "gatv2 of edges": (rg.models.gatv2(features=5, classes=3, dim=8, heads=2, edge_features=3), featured, "nodes"),
        "gemma2": (rg.models.gemma2(**grouped, cap=0.5), text, "source"),
        "gpt_oss": (rg.models.gpt_oss(**grouped, experts=2, active=1), text, "source"),
        "deberta": (rg.models.deberta_v3(**tower, vocabulary=30, buckets=4, max_distance=8), text, "source"),
    }


@pytest.fixture(scope="module")
def built() -> dict[str, tuple[Any, dict[str, Any], str]]:
    built = {name: (config.build().eval(), given, side) for name, (config, given, side) in models().items()}
    for name, x in built["gpt_oss"][0].named_parameters():
        if "sink" in name:
            torch.nn.init.normal_(x)
    return built


def run_capture(model: Any, given: dict[str, Any], side: str, edits: dict[Any, Any] | None = None) -> Capture:
    return capture(model, ModelInput(given, {side: [Token(str(n)) for n in range(20)]}, side), edits or {}, Job())


@pytest.mark.parametrize("name", list(models()))
def test_weights_are_those_that_watch_sees(name: str, built: Any) -> None:
    model, given, side = built[name]
    capture = run_capture(model, given, side)
    with torch.no_grad(), rg.watch(model, weights=True) as seen:
        model(**given)
    assert [attention.name for attention in capture.attentions] == list(seen)
    for attention in capture.attentions:
        wanted = seen[attention.name].weights[0]  # type: ignore[index]
        torch.testing.assert_close(attention.weights(None).float(), wanted.float(), atol=TOLERANCE, rtol=0)
        assert attention.difference["largest"] < 1e-4
        assert attention.describe()["heads"] == wanted.shape[0]
        assert attention.query_side == ("target" if attention.name.startswith("decoder") else side)
        for mine, theirs in (
            (attention.view.entropy, seen[attention.name].entropy),
            (attention.view.received, seen[attention.name].received),
        ):
            torch.testing.assert_close(mine.float(), theirs.float(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["bert", "gatv2", "llama"])
@pytest.mark.parametrize("how", ["silent", "uniform", "shuffle"])
def test_edited_heads_show_the_weights_in_effect(name: str, how: str, built: Any) -> None:
    model, given, side = built[name]
    capture = run_capture(model, given, side, {(0, 1): how})
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad(), rg.edit(model, {(0, 1): how}, generator=draw), rg.watch(model, weights=True) as seen:
        output = model(**given)
    for attention in capture.attentions:
        torch.testing.assert_close(
            attention.weights(None).float(),
            seen[attention.name].weights[0].float(),
            atol=TOLERANCE,
            rtol=0,  # type: ignore[index]
        )
    assert torch.equal(capture.logits, output.logits) if output.logits is not None else True  # type: ignore[arg-type]
    first = capture.attentions[0]
    assert first.describe()["edited"] == {"1": how if how != "shuffle" else "weights"}
    entropy = seen[first.name].entropy[0].mean(-1)
    torch.testing.assert_close(first.stats([])["entropy"][1].float(), entropy[1].float(), atol=1e-5, rtol=0)


def test_norms_are_those_of_explain(built: Any) -> None:
    model, given, side = built["llama"]
    capture = run_capture(model, given, side)
    with torch.no_grad(), rg.watch(model, weights=True) as seen:
        model(**given)
    wanted = value_norms(seen)
    for attention in capture.attentions:
        mine = torch.stack([attention.value_norms(head) for head in range(attention.heads)])
        torch.testing.assert_close(mine.float(), wanted[attention.name][0].float(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["gat", "gatv2 of edges"])
def test_edges_carry_their_weights(built: Any, name: str) -> None:
    model, given, side = built[name]
    attention = run_capture(model, given, side).attentions[0]
    edges, weights = attention.edge_weights()
    dense = attention.weights(None)
    torch.testing.assert_close(weights.float(), dense[:, edges[1], edges[0]].float(), atol=TOLERANCE, rtol=0)
    assert int((dense > 0).sum(-1).sum()) == weights.numel()
    assert (edges[0] == edges[1]).sum() == 9  # self-loops included


def test_a_row_tells_how_its_output_came_about(lab: Lab) -> None:
    for model, head in (("bert", 3), ("llama", 3), ("meanings", 1)):
        row = formula.row(lab, ask(model, attention=0, head=head, query=4), Job())
        raw = (row["q"] * row["k"]).sum(-1)
        torch.testing.assert_close(raw, row["raw"])
        torch.testing.assert_close(raw * row["scale"], row["scaled"])
        score = row["scaled"] + (0.0 if row["position"] is None else row["position"])
        score = score.masked_fill(~row["allowed"], -torch.inf)
        torch.testing.assert_close(score.softmax(-1), row["weight"])
        torch.testing.assert_close(row["weight"] @ row["v"], row["mixed"])
        torch.testing.assert_close(row["mixed"].float(), row["output"], atol=1e-5, rtol=0)
        assert row["sum"] == pytest.approx(1.0, abs=1e-9)


def test_a_cell_is_made_of_its_terms(lab: Lab) -> None:
    cell = formula.cell(lab, ask("llama", attention=1, head=2, query=5, key=3), Job())
    assert float(cell["terms"].sum()) == pytest.approx(cell["raw"], abs=1e-9)
    assert cell["scaled"] == pytest.approx(cell["raw"] * cell["scale"], abs=1e-9)
    assert cell["weight"] == pytest.approx(torch.tensor(cell["score"] - cell["lse"]).exp().item(), abs=1e-6)
    assert cell["distance"] == 2
    hidden = formula.cell(lab, ask("llama", attention=1, head=2, query=3, key=5), Job())
    assert not hidden["allowed"] and hidden["weight"] == 0


def test_maps_rows_and_overview_agree(lab: Lab) -> None:
    body = ask("bert", attention=1, head=2)
    whole = heads.map(lab, body, Job())
    torch.testing.assert_close(whole["weights"].sum(-1), torch.ones(len(whole["weights"]), dtype=torch.float64))
    torch.testing.assert_close(heads.row(lab, body | {"query": 3}, Job())["weight"], whole["weights"][3])
    torch.testing.assert_close(heads.tokens(lab, body | {"query": 3}, Job())["weights"][2], whole["weights"][3])
    small = heads.overview(lab, body, Job())["maps"][1][2]
    assert (small.float() / 255 - whole["weights"].float()).abs().max() <= 0.5 / 255 + 1e-6
    stage = formula.map(lab, body | {"stage": "score", "rows": [2, 4], "keys": [1, 5]}, Job())
    assert stage["values"].shape == (2, 4)


def test_a_pass_is_made_once(lab: Lab) -> None:
    body = ask("bert")
    assert lab.capture(body, Job()) is lab.capture(dict(body), Job())
    assert lab.capture(body, Job()) is not lab.capture(
        body | {"edits": [{"attention": 0, "head": 0, "change": "silent"}]}, Job()
    )


def test_one_row_can_be_given_other_weights(lab: Lab) -> None:
    count = len(lab.capture(ask("bert"), Job()).tokens["source"])
    row = [0.0] * count
    row[0] = 1.0
    edits = [{"attention": 1, "head": 2, "query": 3, "weights": row}]
    weights = lab.capture(ask("bert", edits=edits), Job()).attention(1).weights(2)
    plain = lab.capture(ask("bert"), Job()).attention(1).weights(2)
    assert weights[3].tolist() == row
    torch.testing.assert_close(weights[4], plain[4], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"attention": 9}, "attentions 0 … 1"),
        ({"attention": 0, "head": 4}, "head is 4"),
        ({"edits": [{"attention": 0, "head": 0, "change": "louder"}]}, "'silent', 'uniform', 'shuffle'"),
        ({"edits": "silent"}, "list of objects"),
        ({"edits": [{"attention": 0, "head": 0, "query": 0, "weights": [1.0]}]}, "queries"),
        ({"seed": -1}, "seed"),
    ],
)
def test_what_is_not_there_is_told(lab: Lab, more: dict[str, Any], words: str) -> None:
    with pytest.raises(rg.BadInput, match=words):
        heads.map(lab, ask("bert", **more), Job())
