"""The lab asked as its server asks it: a call by its path, the answer packed and unpacked on its way."""

from __future__ import annotations

import json
from typing import Any

from regard.lab.lab import Lab
from regard.lab.server.app import encode_answer, find_call
from regard.lab.server.jobs import Job
from regard.lab.server.wire import unpack


def ask(lab: Lab, path: str, **body: Any) -> Any:
    data, kind = encode_answer(find_call(*path.split("/"))(lab, json.loads(json.dumps(body)), Job()))
    return unpack(data) if kind == "application/octet-stream" else json.loads(data)
