"""Facts about the machine."""

from __future__ import annotations

import pytest

from regard import machine


@pytest.mark.parametrize(
    "flags, fatal, fast",
    [
        ("fpu avx512f", False, False),
        ("fpu avx512f avx512_bf16", True, True),  # without AMX nothing is tried
        ("avx512_bf16 amx_bf16", False, True),
        ("avx512_bf16 amx_bf16", True, False),
    ],
)
def test_bfloat16_is_fast_where_its_instructions_work(
    monkeypatch: pytest.MonkeyPatch, flags: str, fatal: bool, fast: bool
) -> None:
    monkeypatch.setattr(machine, "cpuinfo", lambda: ["model name\t: any", f"flags\t\t: {flags}"])
    monkeypatch.setattr(machine, "bfloat16_is_fatal", lambda: fatal)
    machine.fast_bfloat16.cache_clear()
    assert machine.fast_bfloat16("cpu") is fast
    machine.fast_bfloat16.cache_clear()
