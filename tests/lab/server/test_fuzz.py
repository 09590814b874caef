"""Random requests get an answer or an error in both languages, never a fault of the server.

`REGARD_FUZZ_REQUESTS=10000 pytest tests/lab/server/test_fuzz.py` sends more of them, `REGARD_FUZZ_SEED` others.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from regard.lab.lab import Lab

from .request_mutations import SentRequest, random_request

REQUESTS, SEED = int(os.environ.get("REGARD_FUZZ_REQUESTS", "300")), int(os.environ.get("REGARD_FUZZ_SEED", "0"))
MAX_SECONDS = 20.0
ALLOWED = {200, 204, 400, 403, 404, 405, 413, 429}


@pytest.fixture(scope="module")
def client(lab: Lab) -> Any:
    from starlette.testclient import TestClient

    from regard.lab.server.app import make_app

    return TestClient(make_app(lab, "T", ("testserver",)), headers={"x-token": "T"}, raise_server_exceptions=False)


@pytest.mark.timeout(300 + REQUESTS)
def test_random_requests_get_an_answer_or_an_error(client: Any, record_property: Callable[[str, object], None]) -> None:
    source, seen, slowest, failed = random.Random(SEED), Counter(), (0.0, -1), []
    for n in range(REQUESTS):
        request = random_request(source)
        started = time.monotonic()
        answer = client.request(request.method, request.path, content=request.body, headers=request.headers)
        took = time.monotonic() - started
        slowest = max(slowest, (took, n))
        seen[answer.status_code] += 1
        if answer.status_code not in ALLOWED or took > MAX_SECONDS or not says_why(request, answer):
            failed.append(f"request {n} of seed {SEED} ({took:.1f} s): {request}, answered {answer.text[:200]!r}")
    found = {"requests": REQUESTS, "statuses": dict(seen), "failed": len(failed), "max_seconds": round(slowest[0], 2)}
    record_property("found", json.dumps(found))  # for benchmarks/hostile.py
    print(f"{found}; the slowest was number {slowest[1]}")
    assert not failed, "\n".join(failed[:50])
    assert seen[200] > REQUESTS / 10 and seen[400] > REQUESTS / 10


def says_why(request: SentRequest, answer: Any) -> bool:
    """Whether a refusal has its reason in both languages."""
    if answer.status_code < 400 or request.method == "HEAD":
        return True
    texts = answer.json()["texts"]
    return bool(texts["en"] and texts["zh"]) and "Traceback" not in texts["en"]
