"""Jobs are bounded and forgotten."""

from __future__ import annotations

import pytest

from regard.lab.server.jobs import MAX_JOBS, Cancelled, Job, JobQueue, QueueFull


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


def test_what_was_cancelled_early_never_runs_and_is_bounded() -> None:
    work, ran = JobQueue(running=1, waiting=1), []
    work.withdraw("early")
    with pytest.raises(Cancelled):
        work.submit(Job("early"), ran.append).result(20)
    work.submit(Job("other"), ran.append).result(20)
    assert [job.name for job in ran] == ["other"]
    for number in range(2 * MAX_JOBS):
        work.withdraw(str(number))
    assert len(work.jobs) == MAX_JOBS and work.find(str(2 * MAX_JOBS - 1)) is not None
    work.close()
