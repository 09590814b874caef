"""A saved view holds its modules and answers."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import pytest
import torch

import regard as rg
from regard.lab.lab import Lab
from regard.lab.server import export
from regard.lab.server.export import export_view, script_modules
from regard.lab.server.jobs import Job
from regard.lab.server.wire import unpack


def test_a_saved_view_holds_its_modules_and_answers(lab: Lab) -> None:
    body = {"model": "meanings", "input": {"text": "</script>猫追狗"}}
    asks = [{"path": "heads/run", "body": body}, {"path": "mechanisms/choices", "body": {}}]
    page = export_view(lab, {"state": {"page": "heads"}, "asks": asks}, Job())
    assert "http://" not in page.replace("http://www.w3.org", "") and 'src="/static' not in page
    held = page.split('id="recorded">')[1].split("</script>")[0]
    kept = json.loads(held)
    assert [one["path"] for one in kept["answers"]] == ["heads/run", "mechanisms/choices"]
    assert kept["answers"][0]["body"] == body and "pack" in kept["answers"][0] and "json" in kept["answers"][1]
    assert all(f'"{name}"' in page for name in script_modules())
    for wrong in ({"path": "heads"}, {"path": "os/system"}, {"path": "heads/run", "body": 3}, "x"):
        with pytest.raises(rg.BadInput):
            export_view(lab, {"state": {}, "asks": [wrong]}, Job())


def read_recorded(page: str) -> dict[str, Any]:
    return json.loads(page.split('id="recorded">')[1].split("</script>")[0])


def asks_of(text: str, count: int) -> list[dict[str, Any]]:
    body = {"model": "bert", "input": {"text": text}, "attention": 0}
    return [{"path": "heads/map", "body": body | {"head": n}} for n in range(count)]


def test_answers_that_were_not_shown_are_added_while_there_is_room(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    asks = asks_of("one two three four five six seven eight " * 5, 4)
    whole = read_recorded(export_view(lab, {"state": {"page": "heads"}, "asks": asks, "shown": 1}, Job()))
    assert len(whole["answers"]) == 4 and whole["left_out"] == 0
    monkeypatch.setattr(export, "BUDGET", 3000)
    part = read_recorded(export_view(lab, {"state": {"page": "heads"}, "asks": asks, "shown": 2}, Job()))
    assert len(part["answers"]) == 2 and part["left_out"] == 2
    monkeypatch.setattr(export, "SECONDS", -1.0)
    late = read_recorded(export_view(lab, {"state": {"page": "heads"}, "asks": asks, "shown": 3}, Job()))
    assert len(late["answers"]) == 3 and late["left_out"] == 1


def test_what_cannot_be_answered_is_left_out_unless_it_was_shown(lab: Lab) -> None:
    asks = [*asks_of("one two", 1), {"path": "heads/map", "body": {"model": "bert", "input": {"text": ""}}}]
    assert read_recorded(export_view(lab, {"state": {}, "asks": asks, "shown": 1}, Job()))["left_out"] == 1
    with pytest.raises(rg.BadInput, match="empty"):
        export_view(lab, {"state": {}, "asks": asks}, Job())


def test_fields_that_requests_share_are_stored_once_and_large_answers_compressed(lab: Lab) -> None:
    text = "猫追狗 " * 60
    asks = [{"path": "heads/map", "body": {"attention": 0, "head": n}, "base": 0} for n in range(2)]
    page = export_view(lab, {"state": {}, "asks": asks, "bases": [{"model": "llama", "input": {"text": text}}]}, Job())
    found = read_recorded(page)
    assert page.count(text) == 1 and found["bases"][0]["input"]["text"] == text
    for n, answer in enumerate(found["answers"]):
        data = gzip.decompress(base64.b64decode(answer["zip"])) if "zip" in answer else base64.b64decode(answer["pack"])
        wanted = lab.capture({"model": "llama", "input": {"text": text}}, Job()).attention(0).weights(n)
        assert torch.allclose(unpack(data)["weights"].to(wanted), wanted, atol=1e-6)
    for base in (1, -1, "0", None):
        with pytest.raises(rg.BadInput, match="base"):
            export_view(lab, {"state": {}, "asks": [asks[0] | {"base": base}], "bases": [{}]}, Job())
