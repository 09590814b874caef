"""Readings of what is no single text: the units are what the model reads, and removing one is done by hand here too."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from regard import BadInput
from regard.attention.parts.edges import Edges
from regard.lab.api import attribution
from regard.lab.attribution.ablation import ablate, ablation_methods
from regard.lab.attribution.graphs import GraphTarget, ablate_edges, run_graph_pass
from regard.lab.attribution.methods import run_pass
from regard.lab.attribution.session import group_cells, group_units
from regard.lab.attribution.target import AttributionTarget, TargetChoice, Units
from regard.lab.inputs.model_input import ModelInput, Token
from regard.lab.server.jobs import Job
from regard.models.config import EncoderDecoderConfig
from regard.models.families.detr import detr
from regard.models.families.gat import gat
from regard.models.families.vit import vit
from regard.models.heads import LMHeadConfig
from regard.nn.block import StackConfig
from regard.nn.embeddings.sound_embedding import SoundEmbeddingConfig
from regard.nn.embeddings.text import TextEmbeddingConfig
from regard.nn.graphs.attention import with_self_loops
from regard.nn.hooks.watch import watch

SOURCE, TARGETS, WRITTEN = torch.tensor([[3, 7, 1, 9, 4]]), torch.tensor([[1, 5, 2]]), [5, 2, 8]


def sharp(model: Any) -> Any:
    """With weights that are not all alike."""
    for name, weight in model.named_parameters():
        if ".q." in name or ".k." in name:
            weight.data.mul_(4.0)
    return model.eval()


def pair(embed: Any = None) -> Any:
    torch.manual_seed(5)
    stack = StackConfig(dim=16, layers=2, heads=2, hidden=32)
    decoder = StackConfig(dim=16, layers=2, heads=2, hidden=32, cross=True, mask="Causal()")
    text = TextEmbeddingConfig(11, 16, positions=16)
    return sharp(
        EncoderDecoderConfig(
            embed or text, stack, decoder, text if embed else None, LMHeadConfig(11, 16), start=1
        ).build()
    )


def ln(model: Any, place: int, label: int, **given: Any) -> float:
    with torch.no_grad():
        return float(model(**given).logits[0, place].log_softmax(-1)[label])


def translation_target(model, position, source):
    inputs = {"tokens": source, "targets": TARGETS}
    return AttributionTarget(model, inputs, TargetChoice(position), generated=WRITTEN)


def test_the_score_of_a_translation_is_that_of_the_token_written():
    model = pair()
    asked = AttributionTarget(
        model, {"tokens": SOURCE, "targets": TARGETS}, TargetChoice(position=1), generated=WRITTEN
    )
    assert (asked.prediction_type, asked.label) == ("generated", 2)
    assert asked.initial_score == pytest.approx(ln(model, 1, 2, tokens=SOURCE, targets=TARGETS), abs=1e-6)


@pytest.mark.parametrize("how", ["delete", "hide"])
def test_a_source_token_is_removed(how):
    model = pair()
    asked = AttributionTarget(
        model, {"tokens": SOURCE, "targets": TARGETS}, TargetChoice(position=2), generated=WRITTEN
    )
    effect = ablate(asked, how)
    for gone in range(5):
        short = torch.cat([SOURCE[:, :gone], SOURCE[:, gone + 1 :]], 1)
        if how == "delete":
            after = ln(model, 2, 8, tokens=short, targets=TARGETS)
        else:  # hidden, it does not matter what it is, whatever the lengths of source and target
            other = SOURCE.clone()
            other[0, gone] = 10
            again = AttributionTarget(
                model, {"tokens": other, "targets": TARGETS}, TargetChoice(position=2), generated=WRITTEN
            )
            after = again.initial_score - float(ablate(again, "hide")[gone])
        assert float(effect[gone]) == pytest.approx(asked.initial_score - after, abs=2e-6)


def test_weights_and_rollout_of_a_decoder_by_hand():
    model = pair()
    asked = AttributionTarget(
        model, {"tokens": SOURCE, "targets": TARGETS}, TargetChoice(position=1), generated=WRITTEN
    )
    seen = run_pass(asked)
    with torch.no_grad(), watch(model, weights=True) as views:
        model(**asked.inputs)
    mean = {name: view.weights[0].mean(0) for name, view in views.items()}
    cross = "decoder.blocks.1.cross"
    assert seen.names[seen.default_attention()] == cross
    torch.testing.assert_close(seen.raw(cross, None), mean[cross][1])
    torch.testing.assert_close(seen.raw(cross, 1), views[cross].weights[0, 1, 1])
    half = lambda a: 0.5 * torch.eye(len(a)) + 0.5 * a  # noqa: E731
    flow = half(mean["stack.blocks.1.attention"]) @ half(mean["stack.blocks.0.attention"])
    own, across = torch.eye(3), torch.zeros(3, 5)
    for layer in (0, 1):
        mixed = half(mean[f"decoder.blocks.{layer}.attention"])
        own, across = mixed @ own, mixed @ across
        own, across = 0.5 * own, 0.5 * across + 0.5 * mean[f"decoder.blocks.{layer}.cross"] @ flow
    torch.testing.assert_close(seen.rollout(cross), across[1])
    torch.testing.assert_close(own.sum(-1) + across.sum(-1), torch.ones(3))
    read = torch.stack([mean[f"decoder.blocks.{layer}.cross"][1] for layer in (0, 1)]).mean(0)
    torch.testing.assert_close(seen.raw("stack.blocks.0.attention", None), read @ mean["stack.blocks.0.attention"])
    for reading in (seen.raw, seen.value, seen.gradient):
        assert reading("decoder.blocks.0.attention", None) is None  # it looks at what is written
    assert seen.rollout("decoder.blocks.0.attention") is None and seen.rollout("decoder.blocks.1.attention") is not None


def test_gradient_is_the_slope_of_the_score():
    model = pair()
    asked = AttributionTarget(
        model, {"tokens": SOURCE, "targets": TARGETS}, TargetChoice(position=1), generated=WRITTEN
    )
    name, head, step = "stack.blocks.0.attention", 1, 1e-3

    def score_at(factor: float) -> float:
        def scale_output(module, args, output):
            output = output.clone()
            output[:, head] *= factor
            return output

        handle = dict(model.named_modules())[name + ".attend"].register_forward_hook(scale_output)
        with torch.no_grad():
            score = asked.score(asked.predict(asked.inputs, asked.positions(1)))[0].double()
        handle.remove()
        return float(score)

    slope = (score_at(1 + step) - score_at(1 - step)) / (2 * step)
    assert float(run_pass(asked).gradient(name, head).sum()) == pytest.approx(slope, rel=2e-2, abs=1e-4)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_patches_are_blanked_alone_or_in_blocks():
    torch.manual_seed(2)
    model = sharp(vit(layers=2, dim=16, heads=2, hidden=32, size=24, patch=4, classes=3).build())
    images = torch.randn(1, 3, 24, 24)
    tokens = [Token("[CLS]", special=True)] + [Token(str(n)) for n in range(36)]
    about = {"grid": [6, 6], "cell": [4, 4], "size": [24, 24], "class_token": True}
    for most, size, count in ((37, 1, 37), (10, 2, 10)):
        units, shown = group_cells(tokens, about, most)
        assert units.grid == (6 // size, 6 // size, size) and len(shown) == units.count == count
        asked = AttributionTarget(model, {"images": images}, TargetChoice(), units)
        effect = ablate(asked, "blank")
        assert ablation_methods(asked) == ["blank", "hide"] and effect[0].isnan()
        for unit in (1, 3, count - 1):
            row, column = (unit - 1) // (6 // size) * 4 * size, (unit - 1) % (6 // size) * 4 * size
            blank = images.clone()
            blank[:, :, row : row + 4 * size, column : column + 4 * size] = 0.0
            with torch.no_grad():
                after = model(images=blank).logits[0].log_softmax(-1)[asked.label]
            assert float(effect[unit]) == pytest.approx(asked.initial_score - float(after), abs=2e-6)
        raw = run_pass(asked).raw("stack.blocks.1.attention", 0)
        assert len(raw) == count and float(raw.sum()) == pytest.approx(1.0, abs=1e-5)
    first = run_pass(asked).views["stack.blocks.1.attention"].weights[0, 0, 0, 1:].view(6, 6)
    torch.testing.assert_close(raw[1:].view(3, 3), first.unfold(0, 2, 2).unfold(1, 2, 2).sum((-1, -2)).float())
    assert ablate(asked, "hide").isfinite().all()


def test_stretches_of_time_are_silenced():
    model = pair(SoundEmbeddingConfig(8, 16, stack=2, positions="sinusoidal"))
    sound = torch.randn(1, 24, 8)
    of = torch.arange(12).clamp(max=9) // 3  # three pieces of three tokens, and silence after them
    units = Units(of, frames=2, quietest=23)
    asked = AttributionTarget(model, {"sound": sound, "targets": TARGETS}, TargetChoice(position=0), units, WRITTEN)
    effect = ablate(asked, "quiet")
    assert ablation_methods(asked) == ["quiet", "hide"] and len(effect) == 4
    for unit in range(4):
        quiet = sound.clone()
        quiet[0, 6 * unit : 6 * unit + 6] = sound[0, 23]
        wanted = asked.initial_score - ln(model, 0, 5, sound=quiet, targets=TARGETS)
        assert float(effect[unit]) == pytest.approx(wanted, abs=2e-6)
    name = "decoder.blocks.1.cross"
    weights = run_pass(asked).views[name].weights[0].mean(0)[0]
    torch.testing.assert_close(run_pass(asked).raw(name, None), weights.view(4, 3).sum(-1).float())


@pytest.mark.parametrize("queries", [4, None])
def test_objects_are_asked_about_by_their_query_or_cell(queries):
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"layers": 2, "dim": 24, "heads": 3, "hidden": 17, "backbone": (6, 10), "classes": 5}
    config = detr(queries=queries, **sizes) if queries else None
    if config is None:
        from dataclasses import replace

        config = replace(detr(queries=4, **sizes), queries=None, decoder=None)
    model = sharp(config.build())
    images = torch.randn(1, 3, 16, 24)
    units, _ = group_cells([Token("")] * 24, {"grid": [4, 6], "cell": [4, 4]}, 64)
    asked = AttributionTarget(model, {"images": images}, TargetChoice(), units)
    with torch.no_grad():
        chances = model(images=images).logits[0].softmax(-1)[:, :-1]
    assert asked.prediction_type == "object" and asked.position == int(chances.amax(-1).argmax())
    assert math.exp(asked.initial_score) == pytest.approx(float(chances.max()), abs=1e-5)
    effect = ablate(asked, "blank")
    blank = images.clone()
    blank[:, :, 4:8, 8:12] = 0.0
    after = ln(model, asked.position, asked.label, images=blank)
    assert float(effect[8]) == pytest.approx(asked.initial_score - after, abs=2e-6)
    seen = run_pass(asked)
    name = seen.names[seen.default_attention()]
    assert name == ("decoder.blocks.1.cross" if queries else "stack.blocks.1.attention")
    torch.testing.assert_close(seen.raw(name, 2), seen.views[name].weights[0, 2, asked.position].float())


def graph() -> tuple[Any, torch.Tensor, torch.Tensor]:
    torch.manual_seed(4)
    model = gat(features=5, classes=3, dim=8, heads=2, version=2, layers=2).build().eval()
    edges = torch.tensor([[1, 2, 3, 0, 4, 2, 5], [0, 0, 0, 1, 2, 4, 3]])
    return model, torch.randn(6, 5), edges


def test_a_graph_is_read_along_the_edges_of_a_node():
    model, nodes, edges = graph()
    asked = GraphTarget(model, {"nodes": nodes, "edges": edges}, TargetChoice(position=0))
    assert (asked.prediction_type, asked.sources.tolist()) == ("node", [0, 1, 2, 3])
    with torch.no_grad():
        wanted = model(nodes=nodes, edges=edges).logits[0].log_softmax(-1)
    assert asked.initial_score == pytest.approx(float(wanted.max()), abs=1e-6)
    effect = ablate_edges(asked)
    whole = with_self_loops(edges, 6)
    for unit, source in enumerate([0, 1, 2, 3]):
        kept = Edges(whole[:, ~((whole[0] == source) & (whole[1] == 0))])
        with torch.no_grad():
            after = model(nodes=nodes, edges=kept).logits[0].log_softmax(-1)[asked.label]
        assert float(effect[unit]) == pytest.approx(asked.initial_score - float(after), abs=2e-6)
    with torch.no_grad(), watch(model, weights=True) as seen:
        model(nodes=nodes, edges=edges)
    run = run_graph_pass(asked)
    first, last = run.names
    torch.testing.assert_close(run.raw(last, None).float(), seen[last].weights[0].mean(0)[0, :4])
    torch.testing.assert_close(run.raw(first, 1).float(), seen[first].weights[0, 1, 0, :4])
    flow = torch.eye(6)
    for name in (first, last):
        flow = (0.5 * torch.eye(6) + 0.5 * seen[name].weights[0].mean(0)) @ flow
    torch.testing.assert_close(run.rollout(last), flow[0, :4])
    values = run.layer(first).v[1, :4].norm(dim=-1)
    torch.testing.assert_close(run.value(first, 1).float(), run.raw(first, 1).float() * values)


def test_the_gradient_along_an_edge_is_a_slope():
    """A head's weight on one edge made a bit larger changes the score by weight · ∂score/∂weight of that edge."""
    model, nodes, edges = graph()
    asked = GraphTarget(model, {"nodes": nodes, "edges": edges}, TargetChoice(position=0))
    name, head, unit, step = "layers.0", 1, 2, 1e-3
    run = run_graph_pass(asked)
    weight, value = float(run.raw(name, head)[unit]), run.layer(name).v[head, 2]

    def score_at(share: float) -> float:
        def scale_output(module, args, kwargs, output):
            output = output.clone()
            output[0, head, 0] += share * weight * value
            return output

        attend = dict(model.named_modules())[name + ".attend"]
        handle = attend.register_forward_hook(scale_output, with_kwargs=True)
        with torch.no_grad():
            score = asked.score(asked.predict(asked.inputs, None))[0].double()
        handle.remove()
        return float(score)

    slope = (score_at(step) - score_at(-step)) / (2 * step)
    assert float(run.gradient(name, head)[unit]) == pytest.approx(slope, rel=2e-2, abs=1e-5)


def test_graphs_that_cannot_be_read():
    model, nodes, edges = graph()
    with pytest.raises(BadInput, match="There is no node 9"):
        GraphTarget(model, {"nodes": nodes, "edges": edges}, TargetChoice(position=9))
    with pytest.raises(BadInput, match="must be drop"):
        ablate_edges(GraphTarget(model, {"nodes": nodes, "edges": edges}), "hide")


def test_a_recording_has_at_most_sixty_four_stretches():
    tokens = [Token(f"{n}", n, n + 1, special=n >= 130) for n in range(200)]
    about = {"heard": 130, "frames_per_token": 2, "quietest": 399}
    units, shown = group_units(ModelInput({}, {"sound": tokens}, "sound", about))
    assert len(shown) == units.count == 44 + 1 and shown[-1].special
    assert units.of[129] == 43 and (units.of[130:] == 44).all() and (units.of[:3] == 0).all()


def test_where_weights_mean_nothing_a_sentence_stands(lab):
    ask = {"model": "pair", "input": {"text": "the cat sat"}}
    names = [one["name"] for one in attribution.read(lab, ask, Job())["attentions"]]
    run = attribution.read(lab, ask | {"attention": names.index("decoder.blocks.0.attention")}, Job())
    missing = [name for name, values in run["attributions"].items() if values is None]
    assert missing == ["raw", "value", "rollout", "gradient"]
    assert "being generated" in run["reasons"]["raw"]["en"] and "正在生成" in run["reasons"]["raw"]["zh"]
    assert run["correlations"]["size"]["raw"]["effect"] is None
    assert run["correlations"]["size"]["effect"]["effect"] == pytest.approx(1.0)
