"""The public names, and what importing the package costs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

import regard as rg
from regard.attention.backends import BACKENDS

NAMES = {
    "calls": "attend look plan shard",
    "what they return": "View Plan",
    "scores": "Dot Bilinear Cosine Additive",
    "positions": "Rotary Alibi Bias T5Bias Shaw TransformerXL Disentangled AxialRotary",
    "masks": "Everything Causal Window Dilated Global RandomBlocks Blocks Lengths Documents Edges Pairs NearBlocks"
    " Chunked Prefix Tree",
    "recipes": "longformer bigbird",
    "methods": "Exact Linformer Nystrom Performer",
    "what today's models add": "Sink PairBias Places EdgeFeatures",
    "the parts of a call as one value": "Parts",
    "what one's own parts derive from": "Mask Score Position Method",
    "converters": "from_key_padding from_attn_mask from_additive from_hugging_face causal_from_start",
    "errors": "RegardError BadInput Unsupported TooLarge Missing",
    "models": "load open export watch edit",
    "what has more names": "nn models",
}


def test_names() -> None:
    assert sorted(rg.__all__) == sorted(name for names in NAMES.values() for name in names.split())
    assert len(set(rg.__all__)) == len(rg.__all__)


@pytest.mark.parametrize("name", sorted(rg.__all__))
def test_every_name_is_there_and_says_what_it_is(name: str) -> None:
    thing = getattr(rg, name)
    assert thing.__doc__ and thing.__doc__.strip()
    if name in NAMES["what has more names"].split():
        assert all(getattr(thing, inner).__doc__ for inner in thing.__all__)
    else:
        assert callable(thing) and thing.__module__.split(".")[0] == "regard"


def test_parts_are_frozen_dataclasses() -> None:
    for kind in ("scores", "positions", "masks", "methods"):
        for name in NAMES[kind].split():
            part = getattr(rg, name)
            assert part.__dataclass_params__.frozen and part.formula, name


FRESH = """
import json, sys
import torch, threading
alone, state, threads = set(sys.modules), torch.get_rng_state(), torch.get_num_threads()
import regard as rg
after = sorted(set(sys.modules) - alone)
quiet = torch.equal(state, torch.get_rng_state())
quiet = quiet and threads == torch.get_num_threads() and threading.active_count() == 1
x = torch.randn(1, 2, 9, 4, requires_grad=True)
rg.attend(x, x, x, mask=rg.Causal() & rg.Window(3), position=rg.Alibi()).sum().backward()
rg.look(x, x, top=2, map=3)
str(rg.plan(x, x, x))
print(json.dumps({"imported": after, "quiet": quiet, "used": sorted(set(sys.modules) - alone)}))
"""


@pytest.fixture(scope="module")
def fresh() -> dict:
    """What a fresh interpreter saw while it imported and used the package; it printed nothing else."""
    ran = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=True)
    assert not ran.stderr
    return json.loads(ran.stdout)


def test_importing_loads_torch_and_nothing_else(fresh: dict) -> None:
    roots = {name.partition(".")[0] for name in fresh["imported"]}
    assert roots - set(sys.stdlib_module_names) == {"regard"}
    assert not [name for name in fresh["imported"] if name.startswith(("regard.lab", "regard.bench", "regard.cli"))]
    assert not [name for name in fresh["imported"] if name.startswith("regard.attention.kernels.")], (
        "kernels are a GPU's"
    )


def test_importing_does_no_work(fresh: dict) -> None:
    assert fresh["quiet"], "random numbers or threads were touched"


def test_eager_calls_on_the_cpu_need_torch_alone(fresh: dict) -> None:
    heavy = "matplotlib scipy transformers torch_geometric typer rich pandas tokenizers accelerate starlette uvicorn"
    assert not {name.partition(".")[0] for name in fresh["used"]} & set(heavy.split())


def test_version() -> None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version("regard")
    except PackageNotFoundError:
        installed = rg.__version__
    assert rg.__version__ == installed


def test_a_plan_reads_as_a_table() -> None:
    q = torch.randn(1, 4, 1024, 8)
    plan = rg.plan(q, q, q, mask=rg.Causal() & rg.Window(9), position=rg.Alibi())
    text = str(plan)
    assert plan.backend == "blockwise" and set(plan.reasons) == set(BACKENDS) - {"blockwise"}
    assert all(why for why in plan.reasons.values())
    assert all(
        word in text
        for word in ("blockwise", "Alibi()", "Causal() & Window(before=9)", "operations", "bytes", "peak", "tiles")
    )
    assert all(why in text for why in plan.reasons.values())
    assert plan.operations > 0 and plan.bytes == 4 * q.numel() * 4 and plan.peak > 0 and 0 < plan.tiles <= 1


@pytest.mark.parametrize("backend", ["reference", "blockwise", "sdpa"])
def test_a_plan_of_a_named_backend(backend: str) -> None:
    q = torch.randn(1, 4, 64, 8)
    plan = rg.plan(q, q, q, mask=rg.Causal(), backend=backend)
    assert plan.backend == backend and backend not in plan.reasons


def test_the_plan_says_who_runs() -> None:
    """What the plan names is what auto runs."""
    q = torch.randn(1, 2, 40, 8)
    sparse, dense = (
        rg.Edges(torch.tensor([[0], [1]])),
        rg.Edges(torch.cartesian_prod(torch.arange(40), torch.arange(40)).mT.contiguous()),
    )
    plans = {
        "sdpa": {},
        "blockwise": {"position": rg.Shaw(torch.randn(2, 3, 8), zero=1)},
        "edges": {"mask": sparse},
    }
    for name, parts in plans.items():
        assert rg.plan(q, q, q, **parts).backend == name
        assert torch.equal(rg.attend(q, q, q, **parts), rg.attend(q, q, q, **parts, backend=name))
    assert rg.plan(q, q, q, mask=dense).backend != "edges"
    assert rg.plan(q, q, q, mask=sparse).tiles == 1 / 1600
    assert rg.plan(q[:, :, -1:], q, q, mask=rg.Causal()).backend == "sdpa", "one query sees everything under Causal"


def test_the_plan_of_a_window_visits_few_tiles() -> None:
    q = torch.empty(1, 1, 8192, 8)
    plan = rg.plan(q, q, q, mask=rg.Causal() & rg.Window(255))
    whole = rg.plan(q, q, q, mask=rg.Causal() & rg.Window(8191))
    assert plan.tiles < 0.08 and plan.operations < whole.operations / 5
