"""The server as the network sees it: who may ask, what is refused with which words, and that it goes on after."""

from __future__ import annotations

import base64
import http.client
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import regard as rg
from regard.lab.api import formula, heads
from regard.lab.lab import Lab
from regard.lab.library import NotFound
from regard.lab.server.app import find_call

from ..client import Client
from ..conftest import SENTENCE

pytest.importorskip("starlette")


@pytest.fixture(autouse=True)
def still_answers(client: Client) -> Any:
    """Whatever a test did, the server answers afterwards."""
    yield
    status, answer = client.ask("heads/run", model="meanings", input={"text": "猫追狗"})
    assert status == 200
    assert [token["text"] for token in answer["tokens"]["source"]] == ["猫", "追", "狗"]


def test_the_address_opens_the_page_and_leaves_a_cookie(client: Client) -> None:
    status, _, headers = client.send("GET", "/?token=secret", token=None)
    assert (status, headers["location"]) == (303, "/")
    cookie = headers["set-cookie"].split(";")[0]
    assert "HttpOnly" in headers["set-cookie"] and "secret" not in cookie
    status, page, headers = client.send("GET", "/", token=None, Cookie=cookie)
    assert status == 200 and b"importmap" in page
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe-inline" not in headers["content-security-policy"].split("style-src")[0]
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/", "/static/main.js", "/api/models", "/api/job/x", "/?token=wrong"])
def test_without_the_token_nothing_is_told(client: Client, path: str) -> None:
    status, answer, _ = client.send("GET", path, token=None)
    assert status == 401 and "regard lab" in answer["error"]


@pytest.mark.parametrize(("path", "token"), [("/", None), ("/?token=wrong", None), ("/", "old")])
def test_a_browser_without_the_token_gets_a_page_that_says_what_to_do(
    client: Client, path: str, token: str | None
) -> None:
    status, page, headers = client.send("GET", path, token=token, Accept="text/html,*/*")
    words = page.decode("utf8")
    assert status == 401 and headers["content-type"].startswith("text/html")
    assert "regard lab" in words and f"http://{client.host}/?token=" in words and "打开它打印的完整地址" in words
    assert "secret" not in words and "default-src 'none'" in headers["content-security-policy"]
    for call in ("/api/models", "/static/main.js"):  # calls of scripts get JSON
        status, answer, _ = client.send("GET", call, token=None, Accept="text/html")
        assert status == 401 and "error" in answer
    status, page, _ = client.send("GET", "/", Host="evil.example", Accept="text/html")
    assert status == 403 and client.host in page.decode("utf8")


def test_a_wrong_token_or_cookie_is_no_token(client: Client) -> None:
    assert client.send("GET", "/", token="Secret")[0] == 401
    assert client.send("GET", "/", token=None, Cookie=f"regard-lab-{client.host.split(':')[1]}=secret")[0] == 401


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost:1", ""])
def test_another_host_is_refused(client: Client, host: str) -> None:
    status, answer, _ = client.send("GET", "/?token=secret", Host=host)
    assert status == 403 and "only" in answer["error"]


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1"])
def test_another_origin_is_refused(client: Client, origin: str) -> None:
    status, answer, _ = client.send("POST", "/api/heads/run", {"model": "meanings"}, Origin=origin)
    assert status == 403 and "may not call" in answer["error"]
    assert client.send("GET", "/api/models", Origin=f"http://{client.host}")[0] == 200


@pytest.mark.parametrize(
    "path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/static/..%2fapp.py", "/etc/passwd"]
)
def test_files_outside_the_page_are_not_there(client: Client, path: str) -> None:
    status, answer, _ = client.send("GET", path)
    assert status == 404 and "error" in answer


@pytest.mark.parametrize("name", ["../bert", "/etc", "bert/..", "nothing", 3, None, ["bert"]])
def test_models_outside_the_folders_are_not_there(client: Client, name: Any) -> None:
    status, answer = client.ask("heads/run", model=name, input={"text": "a"})
    assert status == 404 and "--models" in answer["error"]


def test_pages_and_calls_that_are_not_there(client: Client) -> None:
    assert client.ask("os/system")[0] == 404
    status, answer = client.ask("heads/nothing")
    assert status == 404 and "overview" in answer["error"]
    assert client.send("GET", "/api/heads/run")[0] == 405
    assert client.send("DELETE", "/api/job/unknown")[0] == 404


@pytest.mark.parametrize(
    ("body", "words"),
    [(b"{", "not JSON"), (b"[1]", "JSON object"), (b"[" * 100_000, "not JSON"), (b"\xff", "not JSON")],
)
def test_bodies_that_are_no_object(client: Client, body: bytes, words: str) -> None:
    status, answer, _ = client.send("POST", "/api/heads/run", body)
    assert status == 400 and words in answer["error"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "must be an object"),
        ({}, "reads a text"),
        ({"text": " "}, "empty"),
        ({"text": "a" * 20_001}, "20,001 characters"),
        ({"text": "a " * 3000}, "3,000 tokens"),
        ({"text": "\ud800"}, "unpaired surrogate"),
    ],
)
def test_texts_that_cannot_be_read(client: Client, given: Any, words: str) -> None:
    status, answer = client.ask("heads/run", model="meanings", input=given)
    assert status == 400 and words in answer["error"]


def test_a_hundred_megabytes_are_refused_before_they_are_sent(client: Client) -> None:
    connection = http.client.HTTPConnection(client.host, timeout=20)
    connection.putrequest("POST", "/api/upload")
    for name, value in (("x-token", "secret"), ("content-length", str(100 << 20))):
        connection.putheader(name, value)
    connection.endheaders(b"x" * 1000)
    answer = connection.getresponse()
    assert answer.status == 413 and b"10 MiB" in answer.read()
    connection.close()


def test_more_than_was_told_is_refused_too(client: Client) -> None:
    parts = (b"x" * (1 << 20) for _ in range(11))
    connection = http.client.HTTPConnection(client.host, timeout=20)
    connection.request("POST", "/api/upload", parts, {"x-token": "secret"}, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


def test_a_large_json_is_refused(client: Client) -> None:
    status, answer, _ = client.send("POST", "/api/long/run", b" " * ((4 << 20) + 1))
    assert status == 413 and "4 MiB" in answer["error"]


def test_uploads_are_kept_while_there_is_room(client: Client, lab: Lab) -> None:
    status, answer, _ = client.send("POST", "/api/upload", b"abc")
    assert status == 200 and lab.uploads.get(answer["upload"]) == b"abc"
    assert client.send("POST", "/api/upload", b"")[0] == 400
    first = answer["upload"]
    for _ in range(8):
        client.send("POST", "/api/upload", b"x" * (9 << 20))
    assert lab.uploads.get(first) is None and lab.uploads.used <= 64 << 20


@pytest.fixture(scope="module")
def odd_folder(lab_folder: Path) -> Path:
    """Beside the other models: one that reads pictures, and one that is a pickle."""
    torch.manual_seed(0)
    tiny = {"dim": 16, "layers": 1, "heads": 2, "hidden": 16, "size": 8, "patch": 4, "classes": 3}
    rg.models.vit(**tiny).build().save(lab_folder / "vit")
    pickled = lab_folder / "pickled"
    pickled.mkdir(exist_ok=True)
    (pickled / "config.json").write_text('{"model_type": "bert"}')
    (pickled / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")
    return lab_folder


def test_a_pickle_is_listed_and_refused(client: Client, odd_folder: Path) -> None:
    assert "pickled" in {one["name"] for one in client.send("GET", "/api/models")[1]}
    status, answer = client.ask("heads/run", model="pickled", input={"text": SENTENCE})
    assert status == 400 and "unpickle" in answer["error"] and "safetensors" in answer["error"]


def picture() -> bytes:
    from io import BytesIO

    image = pytest.importorskip("PIL.Image").new("RGB", (20, 30), (200, 10, 10))
    held = BytesIO()
    image.save(held, "PNG")
    return held.getvalue()


@pytest.mark.parametrize(
    "data", [b"", b"nothing", b"\x89PNG\r\n\x1a\n", "cut", b"GIF89a" + b"\xff" * 40, b"%PDF-1.7"], ids=range(6)
)
def test_a_broken_picture_is_told(client: Client, odd_folder: Path, data: Any) -> None:
    data = picture()[:60] if data == "cut" else data
    given = {"base64": base64.b64encode(data).decode()}
    status, answer = client.ask("heads/run", model="vit", input=given)
    assert status == 400 and "picture" in answer["error"]


def test_a_whole_picture_is_read(client: Client, odd_folder: Path) -> None:
    upload = client.send("POST", "/api/upload", picture())[1]["upload"]
    status, answer = client.ask("heads/run", model="vit", input={"upload": upload})
    assert status == 200 and len(answer["tokens"]["image"]) == 5
    assert answer["metadata"]["grid"] == [2, 2] and answer["metadata"]["pixels"].shape == (3, 8, 8)
    assert client.ask("heads/run", model="vit", input={"upload": "gone"})[0] == 404
    assert client.ask("heads/run", model="vit", input={"base64": "@@"})[0] == 400
    assert client.ask("heads/run", model="vit", input={"example": "../regard.json"})[0] == 404


def wave(told: int, held: int, rate: int = 8000) -> bytes:
    """A WAV whose head counts `told` samples and which has `held`."""
    samples = b"\x00\x10" * held
    form = struct.pack("<HHIIHH", 1, 1, rate, 2 * rate, 2, 16)
    parts = b"fmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", 2 * told) + samples
    return b"RIFF" + struct.pack("<I", 4 + len(parts)) + b"WAVE" + parts


@pytest.mark.parametrize(
    "data", [wave(100_000_000, 400), wave(8000, 4000), wave(0, 0), b"RIFF", b"", wave(400, 400)[:50]], ids=range(6)
)
def test_a_recording_that_lies_is_told(client: Client, data: bytes) -> None:
    pytest.importorskip("soundfile")
    given = {"base64": base64.b64encode(data).decode()}
    status, answer = client.ask("heads/run", model="spoken-digits", input=given)
    assert status == 400 and "recording" in answer["error"] and "/tmp" not in answer["error"]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A call that waits until it is let go, or nobody wants it."""
    gate, stopped = threading.Event(), []

    def wait(lab: Lab, ask: dict[str, Any], job: Any) -> dict[str, Any]:
        for n in range(2000):
            if job.cancelled.is_set():
                stopped.append(job)
            job.report(n, 2000, "waiting")
            if gate.wait(0.01):
                return {"done": True}
        raise AssertionError("nobody opened the gate")

    monkeypatch.setitem(formula.CALLS, "slow", wait)
    yield gate, stopped
    gate.set()


def test_fifty_at_once_are_answered_or_told_to_wait(client: Client, slow: Any) -> None:
    gate, _ = slow
    with ThreadPoolExecutor(50) as pool:
        asked = [pool.submit(client.ask, "formula/slow") for _ in range(50)]
        until(lambda: sum(one.done() for one in asked) == 16)
        refused = [one.result() for one in asked if one.done()]
        gate.set()
        answers = [one.result() for one in asked]
    assert {status for status, _ in refused} == {429}
    assert "Try again" in refused[0][1]["error"]
    assert sorted(status for status, _ in answers) == [200] * 34 + [429] * 16


def test_a_slow_request_does_not_hold_up_a_quick_one(client: Client, slow: Any) -> None:
    gate, _ = slow
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.ask, "formula/slow")
        status, _ = client.ask("heads/run", model="meanings", input={"text": "A打了B"})
        assert status == 200 and not waiting.done()
        gate.set()
        assert waiting.result()[0] == 200


def test_work_tells_how_far_it_is_and_can_be_stopped(client: Client, slow: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.send, "POST", "/api/formula/slow", {}, X_Job="mine-1")
        until(lambda: client.send("GET", "/api/job/mine-1")[1].get("done", 0) > 2)
        told = client.send("GET", "/api/job/mine-1")[1]
        assert (told["state"], told["total"], told["words"]) == ("running", 2000, "waiting")
        assert client.send("DELETE", "/api/job/mine-1")[0] == 200
        assert waiting.result()[0] == 499
    assert client.send("GET", "/api/job/mine-1")[1]["state"] == "cancelled"


def test_stopping_what_has_ended_changes_nothing(client: Client, slow: Any) -> None:
    gate, _ = slow
    gate.set()
    assert client.send("POST", "/api/formula/slow", {}, X_Job="mine-2")[0] == 200
    for sent in ({}, {"X_Job": "mine-2"}):
        status, answer, _ = client.send("DELETE", "/api/job/mine-2", **sent)
        assert (status, answer["state"]) == (200, "done")


def test_a_request_on_its_way_is_waiting(client: Client, lab: Lab) -> None:
    status, answer, _ = client.send("GET", "/api/job/on-its-way", X_Job="on-its-way")
    assert (status, answer["state"], answer["total"]) == (200, "waiting", 0)
    assert lab.jobs.find("on-its-way") is None and client.send("GET", "/api/job/on-its-way")[0] == 404


def test_a_request_can_be_stopped_before_it_comes(client: Client, slow: Any) -> None:
    _, stopped = slow
    for _ in range(2):
        status, answer, _ = client.send("DELETE", "/api/job/early", X_Job="early")
        assert (status, answer["state"]) == (200, "cancelled")
    assert client.send("POST", "/api/formula/slow", {}, X_Job="early")[0] == 499
    assert not stopped  # it has never begun
    assert client.send("GET", "/api/job/early")[1]["state"] == "cancelled"
    assert client.send("DELETE", "/api/job/unknown", X_Job="another")[0] == 404
    assert client.send("DELETE", "/api/job/no%20name", X_Job="no name")[0] == 404


def test_whoever_goes_away_stops_the_work(client: Client, slow: Any, lab: Lab) -> None:
    _, stopped = slow
    connection = http.client.HTTPConnection(client.host, timeout=20)
    connection.request("POST", "/api/formula/slow", b"{}", {"x-token": "secret", "x-job": "left"})
    until(lambda: (job := lab.jobs.find("left")) is not None and job.state == "running")
    connection.close()
    until(lambda: bool(stopped))
    assert stopped[0].name == "left"


def test_a_fault_of_ours_is_told_and_survived(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(lab: Lab, ask: dict[str, Any], job: Any) -> dict[str, Any]:
        raise RuntimeError("secret details")

    monkeypatch.setitem(formula.CALLS, "fault", fault)
    status, answer = client.ask("formula/fault")
    assert status == 500 and "RuntimeError" in answer["error"] and "secret" not in answer["error"]


def until(true: Any, seconds: float = 20.0) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def test_numbers_survive_the_way(client: Client, lab: Lab) -> None:
    from regard.lab.server.jobs import Job

    body = {"model": "bert", "input": {"text": SENTENCE}, "attention": 1, "head": 1}
    status, answer = client.ask("heads/map", **body)
    assert status == 200
    wanted = lab.capture(body, Job()).attention(1).weights(1)
    torch.testing.assert_close(answer["weights"].double(), wanted, atol=1e-6, rtol=0)


def test_examples_are_in_both_languages(client: Client) -> None:
    listed = client.send("GET", "/api/examples")[1]
    texts = " ".join(one.get("text", "") + one.get("other", "") for one in listed)
    for needed in ("猫 坐在 垫子", "猫追狗", "狗追猫", "A打了B", "B打了A", SENTENCE, "grey ball"):
        assert needed in texts
    assert all(one["title"]["en"] and one["title"]["zh"] for one in listed)


def test_calls_are_found_by_their_names_alone() -> None:
    assert find_call("heads", "run") is heads.run
    for page, call in (("heads", "__init__"), ("..", "run"), ("capture", "capture")):
        with pytest.raises(NotFound):
            find_call(page, call)
