"""`regard serve`: results, errors, limits, tokens, the page, signals, and bodies that want to break it."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import regard as rg
from regard.assets import list_assets
from regard.cli import app
from regard.errors import BadInput
from regard.serve.app import ModelServer, ServerConfig
from regard.serve.limits import ServingLimits
from regard.serve.server import check_host, listen

from .running import Client, running

SMALL = ServingLimits(body_bytes=200_000, items=8, characters=2000, pixels=10_000, samples=100_000)


@pytest.fixture(scope="module")
def tagger() -> Iterator[Client]:
    with running(rg.open("tagger"), ServerConfig(SMALL)) as client:
        yield client


@pytest.fixture(scope="module")
def digits() -> Iterator[Client]:
    with running(rg.open("digits"), ServerConfig(SMALL)) as client:
        yield client


def test_one_text_and_many(tagger: Client) -> None:
    wanted = rg.open("tagger").predict("The cat sat .").to_dict()
    assert tagger.predict("The cat sat .") == (200, {"result": wanted})
    assert tagger.predict(["The cat sat .", {"text": "The cat sat ."}]) == (200, {"results": [wanted, wanted]})
    assert tagger.predict([]) == (200, {"results": []})


def test_requests_at_once_share_batches(tagger: Client) -> None:
    before = tagger.server.batcher.batches, tagger.server.batcher.items
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(tagger.predict("A cat .")[0])) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 16
    batches, items = tagger.server.batcher.batches - before[0], tagger.server.batcher.items - before[1]
    assert items == 16 and batches < 16


def test_health_and_routes(tagger: Client) -> None:
    status, facts = tagger.get("/health")
    assert status == 200 and facts["status"] == "ok" and facts["task"] == "tag" and facts["waiting"] == 0
    assert facts["requests"] == sum(facts["statuses"].values()) and facts["latency_ms"]["p95"] >= 0
    assert tagger.get("/nothing")[0] == 404 and tagger.get("/predict")[0] == 405
    assert any(event["event"] == "request" and event["status"] == 200 for event in tagger.events)  # type: ignore[attr-defined]
    line = tagger.server.metrics.line()
    assert line is not None and "requests" in line and tagger.server.metrics.line() is None


def test_the_document_describes_the_result(tagger: Client, digits: Client) -> None:
    status, document = tagger.get("/openapi.json")
    assert status == 200 and document["openapi"].startswith("3.1")
    assert set(document["components"]["schemas"]["Result"]["properties"]) == {"words", "tags"}
    example = document["paths"]["/predict"]["post"]["responses"]["200"]["content"]["application/json"]["example"]
    assert len(example["result"]["words"]) == len(example["result"]["tags"])
    assert "image/*" in digits.get("/openapi.json")[1]["paths"]["/predict"]["post"]["requestBody"]["content"]


BAD_BODIES: list[tuple[bytes | str, int, str]] = [
    ("", 400, "bad_json"),
    (b"\xff\xfe", 400, "bad_json"),
    ("[" * 100_000, 400, "bad_json"),
    ('{"input": NaN}', 400, "bad_json"),
    ('{"input": ' + "9" * 5000 + "}", 400, "bad_json"),
    ("[]", 422, "bad_request"),
    ("{}", 422, "bad_request"),
    ('{"input": "a", "inputs": []}', 422, "bad_request"),
    ('{"input": "a", "model": "x"}', 422, "bad_request"),
    ('{"inputs": "a"}', 422, "bad_request"),
    ('{"input": 7}', 422, "bad_input"),
    ('{"input": null}', 422, "bad_input"),
    ('{"input": ["a"]}', 422, "bad_input"),
    ('{"input": {"text": {"a": 1}}}', 422, "bad_input"),
    ('{"input": {"text": 1e999}}', 422, "bad_input"),
    ('{"input": {"a": "x", "b": "y"}}', 422, "bad_input"),
    ('{"input": "\\ud800"}', 422, "bad_input"),
    (json.dumps({"input": "a" * 2001}), 413, "too_long"),
    (json.dumps({"inputs": ["a"] * 9}), 413, "too_many"),
    ("x" * 200_001, 413, "body"),
]


@pytest.mark.parametrize(("body", "status", "code"), BAD_BODIES, ids=range(len(BAD_BODIES)))
def test_bad_requests_are_explained(tagger: Client, body: bytes | str, status: int, code: str) -> None:
    got, answer = tagger.send(body)
    assert (got, answer["error"]["code"]) == (status, code)
    assert len(answer["error"]["message"]) > 10


def test_other_content_types_and_hosts(tagger: Client, digits: Client) -> None:
    assert tagger.send("hello", Content_Type="text/plain")[0] == 415
    assert tagger.send(b"\x89PNG", Content_Type="image/png")[0] == 415
    with running(rg.open("tagger"), ServerConfig(hosts=("127.0.0.1", "localhost"), token="secret-token")) as client:
        body = json.dumps({"input": "a"})
        assert client.send(body)[0] == 401
        assert client.send(body, Authorization="Bearer wrong")[0] == 401
        assert client.send(body, Authorization="Bearer secret-token")[0] == 200
        assert client.send(body, Authorization="Bearer secret-token", Host="evil.example:80")[0] == 403
        assert client.get("/health")[0] == 200
        assert client.get("/openapi.json")[1]["components"]["securitySchemes"]["token"]["scheme"] == "bearer"


def picture(size: tuple[int, int] = (28, 28)) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros(size, np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def test_images_come_as_bytes_base64_and_pixels_never_as_paths(digits: Client, tmp_path: Path) -> None:
    path = sorted((list_assets()["digits"] / "examples").glob("*.png"))[0]
    label = rg.open("digits").predict(path).label
    raw, pixels = path.read_bytes(), np.array(Image.open(path).convert("L")).tolist()
    text = b64encode(raw).decode()
    assert digits.send(raw, Content_Type="image/png")[1]["result"]["label"] == label
    for form in (text, {"image": text}, {"image": f"data:image/png;base64,{text}"}, {"image": pixels}):
        assert digits.predict(form)[1]["result"]["label"] == label
    for form in (
        str(path),
        {"image": str(path)},
        {"path": str(path)},
        {"file": "/etc/passwd"},
        7,
        {"image": [[["x"]]]},
    ):
        status, answer = digits.predict(form)
        assert status == 422 and answer["error"]["code"] == "bad_input", form
    assert digits.predict({"image": b64encode(picture((200, 200))).decode()})[0] == 413
    cut = b64encode(raw[: len(raw) // 2]).decode()
    status, answer = digits.predict([{"image": cut}, {"image": text}])
    assert status == 200 and "error" in answer["results"][0] and answer["results"][1]["label"] == label


def test_recordings() -> None:
    path = sorted((list_assets()["spoken-digits"] / "examples").glob("*.wav"))[3]
    with running(rg.open("spoken-digits"), ServerConfig(SMALL)) as client:
        assert client.send(path.read_bytes(), Content_Type="audio/wav")[1]["result"]["label"] == "3"
        assert client.predict({"audio": b64encode(path.read_bytes()).decode()})[1]["result"]["label"] == "3"
        assert client.predict({"samples": [0.0] * 4000, "sample_rate": 8000})[0] == 200
        for form, status in (
            ({"samples": [0.0] * 100_001, "sample_rate": 8000}, 413),
            ({"samples": [1e7], "sample_rate": 8000}, 422),
            ({"samples": [], "sample_rate": 8000}, 422),
            ({"samples": [0.0]}, 422),
            ({"audio": "UklGRg=="}, 422),
            (str(path), 422),
        ):
            assert client.predict(form)[0] == status, form


@pytest.mark.parametrize("seed", range(3))
def test_random_bodies_never_break_the_server(tagger: Client, digits: Client, seed: int) -> None:
    """Mutations of valid requests: every answer is JSON, and none is a fault of the server."""
    rng = random.Random(seed)
    image = json.dumps({"input": {"image": b64encode(picture()).decode()}}).encode()
    seeds = [json.dumps({"inputs": ["The cat 猫 sat .", {"text": "a\u0000b"}]}).encode(), image]
    for n in range(60):
        client, body = (tagger, bytearray(seeds[0])) if n % 2 else (digits, bytearray(seeds[1]))
        for _ in range(rng.randint(1, 8)):
            place = rng.randrange(len(body) or 1)
            change = rng.randrange(3)
            if change == 0:
                body[place : place + rng.randint(1, 9)] = rng.randbytes(rng.randint(0, 9))
            elif change == 1:
                body[place:place] = rng.choice([b'"', b"{", b"]", b"\\ud83d", b"1e400", b"null", b",", b"-0", b"true"])
            else:
                del body[place:]
        status, answer = client.send(bytes(body))
        assert status in (200, 400, 413, 422), (status, bytes(body))
        assert "error" in answer or "result" in answer or "results" in answer


def test_models_that_cannot_be_served() -> None:
    with pytest.raises(rg.Unsupported, match="reads files"):
        ModelServer(rg.open("karate"), ServerConfig(), print)


def test_hosts_and_ports() -> None:
    check_host("127.0.0.1", False)
    check_host("0.0.0.0", True)
    with pytest.raises(BadInput, match="Add --public"):
        check_host("0.0.0.0", False)
    done = CliRunner().invoke(app, ["serve", "tagger", "--host", "0.0.0.0"])
    assert done.exit_code == 1 and "--public" in done.output
    taken = listen("127.0.0.1", 0)
    with pytest.raises(BadInput, match="cannot be used"):
        listen("127.0.0.1", taken.getsockname()[1])
    taken.close()
    assert CliRunner().invoke(app, ["serve", "tagger", "--token", "short"]).exit_code == 1


def test_the_command_ends_after_its_requests() -> None:
    """SIGTERM while a request waits: it is answered, then the process ends."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "regard.cli", "serve", "writer", "--port", "0", "--log", "json", "--json"]
    command += ["--device", "cpu", "--set", "max_new=12"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        assert server.stdout is not None and server.stderr is not None
        address = json.loads(server.stdout.readline())["address"]
        client = Client(int(address.rpartition(":")[2]), None)  # type: ignore[arg-type]
        answers: list[tuple[int, dict]] = []
        thread = threading.Thread(target=lambda: answers.append(client.predict(["To be"] * 8)))
        thread.start()
        while client.get("/health")[1]["waiting"] == 0 and thread.is_alive():
            time.sleep(0.002)  # asked without a pause, it would take the processor from the request
        server.send_signal(signal.SIGTERM)
        thread.join(60)
        log = server.stderr.read()
        server.wait(60)
    assert answers and answers[0][0] == 200 and len(answers[0][1]["results"]) == 8
    events = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert events[-1]["event"] == "request" and events[-1]["inputs"] == 8 and "Traceback" not in log


def test_caches_are_emptied(tagger: Client) -> None:
    predictor = rg.open("digits")
    predictor.predict(sorted((list_assets()["digits"] / "examples").glob("*.png")))
    cache = predictor.task.inputs.pixel_cache  # type: ignore[union-attr]
    assert cache.tensors
    predictor.clear_caches()
    predictor.predict(sorted((list_assets()["digits"] / "examples").glob("*.png")))
    assert not cache.tensors and torch.is_grad_enabled()
