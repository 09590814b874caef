"""`regard plan scale`: predictions on the command line."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from regard import cli


def scale(*arguments: str) -> str:
    done = CliRunner().invoke(cli.app, ["plan", "scale", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize(
    ("link", "tokens", "ranks"),
    [("nvlink", 1_000_000, 8), ("infiniband", 2_000_000, 128), ("ethernet", 1_000_000, 64)],
)
def test_a_window_moves_a_neighbour_and_not_all_keys(link: str, tokens: int, ranks: int) -> None:
    given = ["Causal() & Window(4095)", "--tokens", str(tokens), "--ranks", str(ranks), "--link", link, "--json"]
    best, *others = json.loads(scale(*given))
    assert best["method"] in ("equal runs", "equal work") and best["balance"] < 1.1
    assert best["received"] < 1.1 * 4096 * 4096  # as many keys as the window, 4,096 bytes each
    assert best["seconds"] < min(one["seconds"] for one in others if one["method"] in ("ring", "all-gather"))


def test_long_times_are_seconds_and_many_bytes_gigabytes() -> None:
    table = scale("Causal()", "--tokens", "4000000", "--ranks", "16")
    assert {line.split()[0] for line in table.splitlines()[2:]} >= {"Ulysses", "ring", "all-gather", "zigzag"}
    assert " s " in table and " GB" in table and "e+" not in table


def test_a_sequence_shorter_than_the_ranks_is_refused() -> None:
    done = CliRunner().invoke(cli.app, ["plan", "scale", "Causal()", "--tokens", "3", "--ranks", "4"])
    assert done.exit_code == 1 and "each needs at least one" in done.output
