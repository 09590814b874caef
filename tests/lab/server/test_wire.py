"""The wire format keeps values."""

from __future__ import annotations

import json

import torch

from regard.lab.server.wire import pack, to_json, unpack


def test_packs_and_json_say_what_they_were_given() -> None:
    held = {
        "a": torch.arange(3, dtype=torch.uint8),
        "b": [torch.rand(2, 3).double(), {"c": torch.tensor(True)}],
        "d": float("nan"),
    }
    found = unpack(pack(held))
    assert torch.equal(found["a"], held["a"]) and found["d"] is None
    assert torch.equal(found["b"][0], held["b"][0].float()) and bool(found["b"][1]["c"])  # type: ignore[index]
    assert unpack(pack({"x": torch.zeros(0, 4)}))["x"].shape == (0, 4)
    assert json.loads(to_json({"x": float("inf"), "y": [1, "猫"]})) == {"x": None, "y": [1, "猫"]}
