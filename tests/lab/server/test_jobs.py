"""Jobs are bounded and forgotten."""

from __future__ import annotations

import pytest

from regard.lab.server.jobs import Busy, Job, Work


def test_work_is_bounded_and_forgets() -> None:
    work = Work(running=1, waiting=1)
    jobs = [Job("a"), Job("b")]
    hold = [work.start(job, lambda job: job.stopped.wait(20) and "done") for job in jobs]
    with pytest.raises(Busy, match="Ask again"):
        work.start(Job("c"), lambda job: None)
    for job in jobs:
        job.cancel()
    assert hold[0].result(20) == "done"
    work.close()
