"""How kernels are started: compiled together the first time, not before and not again."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

triton = pytest.importorskip("triton")

from regard.attention.kernels import launch  # noqa: E402


class Kernel:
    """Notes what is actions of it."""

    def __init__(self) -> None:
        self.actions: list[tuple] = []

    def __getitem__(self, grid: tuple[int, ...]):
        return lambda *arguments, **settings: self.actions.append(("start", grid, arguments, settings)) or "compiled"

    def warmup(self, *arguments: object, grid: tuple[int, ...], **settings: object) -> None:
        self.actions.append(("compile", grid, arguments, settings))


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where kernels are compiled."""
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    monkeypatch.setattr(launch, "COMPILED", set())


@pytest.mark.usefixtures("compiling")
def test_the_first_of_a_kind_is_compiled_and_not_started() -> None:
    first, second = Kernel(), Kernel()

    def work() -> None:
        assert launch.start(first, (3,), 1, SIZE=2) is None
        assert launch.start(second, (4, 5)) is None

    launch.compile_together("kind", work)
    assert first.actions == [("compile", (3,), (1,), {"SIZE": 2})] and second.actions == [("compile", (4, 5), (), {})]
    launch.compile_together("kind", work)
    assert len(first.actions) == len(second.actions) == 1
    assert launch.start(first, (3,), 1, SIZE=2) == "compiled"
    assert first.actions[1] == ("start", (3,), (1,), {"SIZE": 2})
    launch.compile_together("another kind", work)
    assert [action for action, *_ in first.actions] == ["compile", "start", "compile"]


@pytest.mark.usefixtures("compiling")
def test_an_error_is_raised_and_kernels_start_again() -> None:
    kernel = Kernel()

    def work() -> None:
        raise ValueError("no such tile")

    with pytest.raises(ValueError, match="no such tile"):
        launch.compile_together("kind", work)
    assert launch.start(kernel, (1,)) == "compiled"


def test_nothing_is_compiled_in_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    launch.compile_together("kind", lambda: pytest.fail("it was run"))
