"""Another user of the same machine has no access: token, cookie, and the file that opens the browser."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from regard.lab.server.app import PAGES
from regard.lab.server.serve import write_redirect

from ..client import Client

ROUTES = [
    ("GET", "/"),
    ("GET", "/static/main.js"),
    ("GET", "/favicon.ico"),
    ("GET", "/api/models"),
    ("GET", "/api/examples"),
    ("POST", "/api/upload"),
    ("POST", "/api/page"),
    ("GET", "/api/job/x"),
    ("DELETE", "/api/job/x"),
    *(("POST", f"/api/{page}/run") for page in PAGES),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_no_route_answers_without_token_or_cookie(client: Client, method: str, path: str) -> None:
    for headers in ({}, {"Cookie": "regard-lab=x"}, {"Authorization": "Bearer secret"}):
        assert client.send(method, path, {} if method == "POST" else None, token=None, **headers)[0] == 401
    assert client.send(method, f"{path}?token=secre", {} if method == "POST" else None, token=None)[0] == 401


def test_the_cookie_has_the_strictest_flags_and_does_not_hold_the_token(client: Client) -> None:
    cookie = client.send("GET", "/?token=secret", token=None)[2]["set-cookie"]
    flags = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= flags
    assert not any(flag.startswith(("domain", "expires", "max-age")) for flag in flags)
    name, value = cookie.split(";")[0].split("=")
    assert "secret" not in value and len(value) == 64 and name.endswith(client.host.split(":")[1])


def test_a_link_on_another_page_is_forwarded_by_a_page_of_ours(client: Client) -> None:
    """A browser sends no strict cookie along a redirect that another site's link began."""
    status, page, headers = client.send("GET", "/?token=secret", token=None, Sec_Fetch_Site="cross-site")
    assert status == 200 and b"url=/" in page and b"secret" not in page and "set-cookie" in headers
    assert client.send("GET", "/?token=secret", token=None, Sec_Fetch_Site="none")[0] == 303
    status, _, headers = client.send("GET", "/?token=wrong", token=None, Sec_Fetch_Site="cross-site")
    assert status == 401 and "set-cookie" not in headers


def test_the_browser_is_opened_by_a_file_of_this_user_alone(tmp_path: Path) -> None:
    """Command lines are visible to all users of a machine, so the token must not be in one."""
    url = write_redirect(tmp_path, 'http://127.0.0.1:1/?token=a"b&c')
    assert url.startswith("file:") and "token" not in url
    path = tmp_path / "open.html"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "url=http://127.0.0.1:1/?token=a&quot;b&amp;c" in path.read_text("utf8")
