"""Dynamic batching: inputs of different requests that wait at the same time are predicted together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ..data.reading import MalformedData
from ..errors import RegardError
from ..tasks.results import Result
from .limits import RefusedRequest

Outcome = Result | RefusedRequest
"""The result of one input, or why there is none."""


@dataclass(frozen=True, eq=False)
class Pending:
    """An input that waits for its batch."""

    given: object
    future: asyncio.Future[Outcome]


class Batcher:
    """Collects inputs for up to `max_wait` seconds or `max_batch` inputs, and predicts them in one thread.

    A batch begins as soon as the one before has ended: while the model is busy, the next batch fills. After a batch of
    one input the next does not wait.
    """

    def __init__(
        self,
        predict: Callable[[list[object]], Sequence[Result]],
        max_batch: int = 32,
        max_wait: float = 0.002,
        max_queue: int = 1024,
    ) -> None:
        self.predict, self.max_batch, self.max_wait, self.max_queue = predict, max_batch, max_wait, max_queue
        self.queue: asyncio.Queue[Pending] = asyncio.Queue()
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="predict")
        self.worker: asyncio.Task[None] | None = None
        self.waiting = 0
        self.batches = 0
        self.items = 0
        self.last_batch = 0

    def start(self) -> None:
        """Begin to predict, on the running event loop."""
        self.worker = asyncio.create_task(self.run())

    async def close(self) -> None:
        """Answer what is waiting, then stop."""
        await self.queue.join()
        if self.worker is not None:
            self.worker.cancel()
        self.thread.shutdown(wait=True)

    async def submit(self, inputs: Sequence[object], seconds: float) -> list[Outcome]:
        """The outcome of each input; `RefusedRequest` if the queue is full or the answer takes too long."""
        if self.waiting + len(inputs) > self.max_queue:
            raise RefusedRequest(
                429, "queue_full", f"{self.waiting} inputs are waiting, at most {self.max_queue} may. Try again later."
            )
        loop = asyncio.get_running_loop()
        pending = [Pending(given, loop.create_future()) for given in inputs]
        self.waiting += len(pending)
        for item in pending:
            self.queue.put_nowait(item)
        try:
            async with asyncio.timeout(seconds):
                return [await item.future for item in pending]
        except TimeoutError:
            raise RefusedRequest(
                503, "timeout", f"There was no answer in {seconds:g} seconds. Send fewer inputs, or try again later."
            ) from None
        finally:
            for item in pending:  # of a request that has timed out or whose client is gone
                item.future.cancel()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = await self.next_batch()
            wanted = [item for item in batch if not item.future.done()]
            try:
                if wanted:
                    inputs = [item.given for item in wanted]
                    outcomes = await loop.run_in_executor(self.thread, self.predict_batch, inputs)
                    for item, outcome in zip(wanted, outcomes, strict=True):
                        if not item.future.done():
                            item.future.set_result(outcome)
                    self.batches, self.items = self.batches + 1, self.items + len(wanted)
            finally:
                self.waiting -= len(batch)
                for item in batch:
                    item.future.cancel()  # nothing waits for ever if the thread failed
                    self.queue.task_done()

    async def next_batch(self) -> list[Pending]:
        """The next inputs: those that wait, and those that come until the batch is full or `max_wait` is over."""
        batch = [await self.queue.get()]
        # a single client waits for its answer before it sends more: there is nothing to wait for
        deadline = time.monotonic() + (self.max_wait if self.last_batch > 1 else 0.0)
        while len(batch) < self.max_batch:
            if not self.queue.empty():
                batch.append(self.queue.get_nowait())
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                break
            try:
                batch.append(await asyncio.wait_for(self.queue.get(), left))
            except TimeoutError:
                break
        self.last_batch = len(batch)
        return batch

    def predict_batch(self, inputs: list[object]) -> list[Outcome]:
        """The outcome of each input; after an error each is predicted alone, so that the others have their results."""
        try:
            return list(self.predict(inputs))
        except Exception:
            return [self.predict_alone(given) for given in inputs]

    def predict_alone(self, given: object) -> Outcome:
        try:
            return self.predict([given])[0]
        except (RegardError, MalformedData) as error:
            return RefusedRequest(422, "bad_input", " ".join(str(error).split()))
        except Exception as error:
            return RefusedRequest(500, "internal", f"The prediction failed ({type(error).__name__}).")
