"""A saved view holds its modules and answers."""

from __future__ import annotations

import json

import pytest

import regard as rg
from regard.lab.lab import Lab
from regard.lab.server.export import export_view, script_modules
from regard.lab.server.jobs import Job


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
