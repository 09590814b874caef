"""Models are found in the given folders only."""

from __future__ import annotations

from pathlib import Path

import pytest

import regard as rg
from regard.lab.api import heads
from regard.lab.lab import Lab
from regard.lab.library import ModelLibrary, NotFound
from regard.lab.server.jobs import Job


def test_links_out_of_a_folder_are_not_followed(lab_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(lab_folder)
    (tmp_path / "own").mkdir()
    assert not [name for name, one in ModelLibrary([tmp_path], shipped=False).entries().items() if one.path]
    with pytest.raises(rg.BadInput, match="not a folder"):
        ModelLibrary([tmp_path / "nowhere"])
    with pytest.raises(NotFound, match="bert"):
        ModelLibrary([lab_folder]).entry("out/bert")


def test_shipped_models_open_and_agree_with_themselves(lab: Lab) -> None:
    shipped = [one for one in lab.library.entries().values() if one.source == "shipped" and one.path is not None]
    for one in shipped:
        assert one.modality in ("text", "pair", "image", "sound", "graph") and one.layers and one.heads, one
        if one.modality in ("text", "pair"):
            found = heads.run(lab, {"model": one.name, "input": {"text": "The cat sat."}}, Job())
        elif one.examples():
            found = heads.run(lab, {"model": one.name, "input": {"example": one.examples()[0]}}, Job())
        else:
            continue
        assert found["difference"]["largest"] < 1e-4, one.name
        assert found["prediction"]["items"], one.name
