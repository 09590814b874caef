"""The batcher: inputs that wait together are one batch, a bad input fails alone, the queue has an end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from regard.errors import BadInput
from regard.serve.batching import Batcher
from regard.serve.limits import RefusedRequest
from regard.tasks.results import GeneratedText

T = TypeVar("T")


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of a coroutine on an event loop of its own thread; a browser's test may have one in this thread."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(asyncio.run(work())))
    thread.start()
    thread.join()
    return results[0]


class Recorder:
    """A model that answers a text with itself, in the time that a batch takes."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.batches = seconds, []

    def __call__(self, inputs: list[Any]) -> list[GeneratedText]:
        self.batches.append(list(inputs))
        time.sleep(self.seconds)
        if "bad" in inputs:
            raise BadInput("This is bad.")
        if "broken" in inputs:
            raise ZeroDivisionError
        return [GeneratedText(text, text.upper()) for text in inputs]


def test_requests_that_wait_are_one_batch_in_order() -> None:
    model = Recorder(0.02)

    async def work() -> list[list[Any]]:
        batcher = Batcher(model, max_batch=8, max_wait=0.005)
        batcher.start()
        answers = await asyncio.gather(*(batcher.submit([f"a{n}", f"b{n}"], 10) for n in range(10)))
        await batcher.close()
        return answers

    for n, answer in enumerate(run(work)):
        assert [result.text for result in answer] == [f"A{n}", f"B{n}"]
    assert sum(map(len, model.batches)) == 20 and max(map(len, model.batches)) == 8 and len(model.batches) <= 5


def test_one_bad_input_fails_alone() -> None:
    async def work() -> list[Any]:
        batcher = Batcher(Recorder())
        batcher.start()
        answers = await batcher.submit(["a", "bad", "broken", "b"], 10)
        await batcher.close()
        return answers

    first, bad, broken, last = run(work)
    assert (first.text, last.text) == ("A", "B")
    assert isinstance(bad, RefusedRequest) and bad.status == 422 and bad.message == "This is bad."
    assert isinstance(broken, RefusedRequest) and broken.status == 500 and "ZeroDivisionError" in broken.message


def test_a_full_queue_and_a_slow_answer_are_refused() -> None:
    async def work() -> tuple[int, int, int]:
        batcher = Batcher(Recorder(0.2), max_batch=1, max_queue=3)
        batcher.start()
        waiting = asyncio.create_task(batcher.submit(["a", "b"], 10))
        await asyncio.sleep(0.05)
        with pytest.raises(RefusedRequest) as full:
            await batcher.submit(["c", "d"], 10)
        with pytest.raises(RefusedRequest) as slow:
            await batcher.submit(["c"], 0.01)
        assert [result.text for result in await waiting] == ["A", "B"]
        await batcher.close()
        return full.value.status, slow.value.status, batcher.waiting

    assert run(work) == (429, 503, 0)


def test_closing_answers_what_waits() -> None:
    async def work() -> list[Any]:
        batcher = Batcher(Recorder(0.05), max_batch=2)
        batcher.start()
        waiting = asyncio.create_task(batcher.submit(list("abcdef"), 10))
        await asyncio.sleep(0.01)
        await batcher.close()
        return await waiting

    assert [result.text for result in run(work)] == list("ABCDEF")


def test_an_idle_model_answers_without_delay() -> None:
    async def work() -> float:
        batcher = Batcher(Recorder(), max_wait=0.005)
        batcher.start()
        await batcher.submit(["a"], 10)
        started = time.monotonic()
        await batcher.submit(["a"], 10)
        seconds = time.monotonic() - started
        await batcher.close()
        return seconds

    assert run(work) < 0.5
