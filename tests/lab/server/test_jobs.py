"""Jobs are bounded and forgotten."""

from __future__ import annotations

import pytest

from regard.lab.server.jobs import Job, JobQueue, QueueFull


def test_work_is_bounded_and_forgets() -> None:
    work = JobQueue(running=1, waiting=1)
    jobs = [Job("a"), Job("b")]
    hold = [work.submit(job, lambda job: job.cancelled.wait(20) and "done") for job in jobs]
    with pytest.raises(QueueFull, match="Try again"):
        work.submit(Job("c"), lambda job: None)
    for job in jobs:
        job.cancel()
    assert hold[0].result(20) == "done"
    work.close()
