"""Progress callbacks and the progress line."""

import pytest

from regard.experiments.progress import ProgressPrinter


def test_printer_shows_elapsed_and_remaining_time(capsys: pytest.CaptureFixture[str]) -> None:
    progress = ProgressPrinter("made", interval=0.0)
    progress.start -= 30
    progress(0.25, "loss 1.5")
    output = capsys.readouterr().err
    assert "25 %" in output and "0:30 elapsed, 1:3" in output and "loss 1.5" in output
