"""Kernels compiled for a GPU of Hopper, without one: none asks for more shared memory than a program may have."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

import pytest

MOST = 227 * 1024  # bytes of shared memory of a program
# head_dim, table or slopes by distance, bias by pair, cap, explicit places; slopes cost most at places
CASES = [(128, 1, *others) for others in itertools.product((False, True), repeat=3)]
CASES += [(128, 2, True, cap, True) for cap in (False, True)] + [
    (256, 1, True, True, placed) for placed in (False, True)
]


@pytest.mark.parametrize("kernel", ["forward_kernel", "dkdv_kernel"])
def test_wide_heads_with_all_that_is_added_to_scores(kernel: str) -> None:
    """Half types with a table by distance, a bias by pair and a cap: each takes memory for every step ahead."""
    cases = [case for case in CASES if kernel == "forward_kernel" or all(case[2:4])]
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, __file__, kernel, json.dumps(cases)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert not done.returncode, done.stderr[-2000:]
    sizes = json.loads(done.stdout.splitlines()[-1])
    assert len(sizes) == len(cases) and all(0 < size <= MOST for size in sizes), list(zip(cases, sizes, strict=True))


def shared_memory(kernel: str, dim: int, form: int, pairs: bool, cap: bool, placed: bool) -> int:
    """The bytes of shared memory of a kernel of the dot family."""
    import torch
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from regard.attention.kernels.dot import kernels, passes
    from regard.attention.kernels.dot.schedule import DotConfig
    from regard.attention.kernels.launch import PairLayout, PlacedTable
    from regard.attention.parts.mask import PairGrid

    grid, half = PairGrid(256, 256, 1, 2), torch.float16
    layout = PairLayout((0, 0, 256, 1), torch.float32, True) if pairs else None
    table = PlacedTable(80, 160, False) if placed else None
    config = DotConfig(
        grid, half, 1, dim, dim, (16,) * 12, 0.125, None, form, False, True, 10.0 if cap else None, True, layout,
        False, True, table,
    )  # fmt: skip
    shape = config.shape(passes.FORWARD if kernel == "forward_kernel" else passes.DKDV)
    values = {**config.arguments(), **shape.arguments(), "BY_BATCH": False, "BY_HEAD": False, "HEADS": 1}
    types = dict.fromkeys(("p_q", "p_k", "p_v", "p_do", "p_dk", "p_dv"), "*fp16")
    types |= dict.fromkeys(("p_tile", "p_bits", "p_packed", "p_run_end", "p_places", "p_group", "p_row"), "*i32")
    types |= dict.fromkeys(("p_first", "p_last", "p_slot"), "*i32")
    absent = {"p_rel_q", "p_rel_vectors", "p_key_vectors", "p_seed", "p_ds", "p_ds_base"} | (
        set() if pairs else {"p_pairs"}
    )
    signature, constants, divisible = {}, {}, {}
    function = getattr(kernels, kernel)
    for number, parameter in enumerate(function.params):
        name = parameter.name
        if parameter.is_constexpr or name in absent:
            signature[name], constants[(number,)] = "constexpr", values.get(name)
        elif name.startswith("p_"):
            signature[name] = types.get(name, "*fp32")
            divisible[(number,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32" if isinstance(values.get(name, 0), float) else "i32"
            if name.startswith("stride_"):
                divisible[(number,)] = [["tt.divisibility", 16]]
    options = {"num_warps": shape.warps, "num_stages": shape.stages}
    source = ASTSource(function, signature, constants, divisible)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).metadata.shared


if __name__ == "__main__":
    print(json.dumps([shared_memory(sys.argv[1], *case) for case in json.loads(sys.argv[2])]))
