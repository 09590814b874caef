"""The lab for its tests: small models in a folder, a server over them, and a real browser that must stay silent."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from .client import Client

SENTENCE = "The animal didn't cross the street because it was too tired."
TEXTS = [
    SENTENCE,
    "猫 坐在 垫子",
    "猫追狗",
    "A打了B",
    "white ball grey ball",
    "one two three four five six seven eight",
]


def save_text_model(folder: Path, config: Any, kind: str) -> None:
    from regard.models.tokenizers.tokenizer import Tokenizer

    tokenizer = Tokenizer.train(TEXTS, kind, 400)  # type: ignore[arg-type]
    torch.manual_seed(0)
    model = config(tokenizer.size).build().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and ".attention" in name:
                weight.mul_(6.0)  # so that the weights of a random model are not all alike
    model.tokenizer = tokenizer
    model.save(folder)


@pytest.fixture(scope="session")
def lab_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random models (`bert`: 2 × 4 heads, `llama`: fewer key heads, `large`: 12 × 12) and the runs of `save_runs`.

    Also `objects`, a detector with a picture beside it, and `dictation`, which writes down what it hears.
    """
    from regard.models import bert, llama

    from .saved_runs import save_runs
    from .task_runs import picture, save_other_run

    root = tmp_path_factory.mktemp("models")
    plain: dict[str, Any] = {"hidden": 32, "places": 600}
    save_text_model(root / "bert", lambda n: bert(layers=2, dim=32, heads=4, vocabulary=n, **plain), "wordpiece")
    save_text_model(root / "large", lambda n: bert(layers=12, dim=96, heads=12, vocabulary=n, **plain), "wordpiece")
    save_text_model(
        root / "llama", lambda n: llama(layers=2, dim=32, heads=4, kv_heads=2, hidden=32, vocabulary=n), "bpe"
    )
    save_runs(root)
    for name in ("objects", "dictation"):
        save_other_run(root, name)
    (root / "objects" / "examples").mkdir()
    (root / "objects" / "examples" / "square.png").write_bytes(picture(1))
    return root


@pytest.fixture(scope="session")
def lab(lab_folder: Path) -> Any:
    pytest.importorskip("starlette")
    from regard.lab.lab import Lab
    from regard.lab.library import ModelLibrary

    return Lab(ModelLibrary([lab_folder]))


@pytest.fixture(scope="session")
def lab_address(lab: Any) -> Iterator[str]:
    """Where the lab answers, token included."""
    uvicorn = pytest.importorskip("uvicorn")
    from regard.lab.server.app import make_app

    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    app = make_app(lab, "secret", (f"127.0.0.1:{port}",))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}/?token=secret"
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="session")
def client(lab_address: str) -> Client:
    return Client(lab_address)


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Any]:
    """One Chromium for all tests of a session, whose microphone beeps."""
    play = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with play.sync_playwright() as started:
        microphone = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        launched = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", *microphone])
        yield launched
        launched.close()


class WatchedPage:
    """A browser page whose console errors, except `allowed` ones, and requests to elsewhere fail the test."""

    def __init__(self, context: Any) -> None:
        self.page = context.new_page()
        self.page.ready, self.page.address = self.ready, self.address
        self.watch(())
        self.page.on("console", self.record_message)
        self.page.on("pageerror", lambda error: self.errors.append(f"{error}\n{error.stack}"))
        self.page.on("request", self.record_request)

    def watch(self, allowed: tuple[str, ...]) -> None:
        """Forget what was recorded."""
        self.errors: list[str] = []
        self.outside: list[str] = []
        self.allowed = allowed

    def record_message(self, message: Any) -> None:
        if message.type == "error" and not any(words in message.text for words in self.allowed):
            self.errors.append(message.text)

    def record_request(self, request: Any) -> None:
        if not request.url.startswith(("http://127.0.0.1:", "data:", "blob:", "file:", "about:")):
            self.outside.append(request.url)

    def address(self) -> str:
        """The address as the page itself sees it; `page.url` is told of a change a little later."""
        return self.page.evaluate("location.href")

    def ready(self) -> Any:
        """Wait until the page is shown and has nothing to ask, now or soon."""
        self.page.wait_for_selector("#main[data-ready]", timeout=90_000)
        self.page.wait_for_function("() => document.documentElement.dataset.busy === 'no'", timeout=90_000)
        return self.page

    def check(self) -> None:
        assert not self.errors, f"The console says: {self.errors}"
        assert not self.outside, f"The page asked elsewhere: {self.outside}"


GO_THERE = """place => {
  localStorage.clear(), sessionStorage.clear(), scrollTo(0, 0), document.activeElement?.blur();
  for (const open of document.querySelectorAll(":popover-open")) open.hidePopover();
  delete document.getElementById("main").dataset.ready;
  history.replaceState(null, "", "#");
  location.hash = place;
}"""
"""Opens a place of the lab in a page that shows another, as if nothing had been stored before."""


class SharedTab:
    """A page of the lab that stays open for many tests: going from place to place is faster than loading the lab."""

    def __init__(self, browser: Any, address: str) -> None:
        self.browser, self.address = browser, address
        self.context: Any = None
        self.tab: WatchedPage | None = None

    def open_context(self) -> Any:
        if self.context is None:
            self.context = self.browser.new_context(
                viewport={"width": 1280, "height": 900}, accept_downloads=True, locale="en-US"
            )
        return self.context

    def show(self, place: str, allowed: tuple[str, ...]) -> WatchedPage:
        if self.tab is None:
            self.tab = WatchedPage(self.open_context())
            self.tab.page.goto(f"{self.address}#runs")
            self.tab.ready()
        self.tab.allowed = allowed
        self.tab.page.mouse.move(0, 0)
        self.tab.page.evaluate(GO_THERE, place)
        return self.tab

    def discard(self) -> None:
        """Close everything, after a test that failed or left the page as no other expects it."""
        if self.context is not None:
            self.context.close()
        self.context = self.tab = None


@pytest.fixture(scope="session")
def shared_tab(browser: Any, lab_address: str) -> Iterator[SharedTab]:
    shared = SharedTab(browser, lab_address)
    yield shared
    shared.discard()


@pytest.fixture
def open_lab(shared_tab: SharedTab, lab_address: str, request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Opens a page of the lab by its address, such as `heads?model=bert&lang=zh`, and waits until it is shown.

    The first one of a test is a tab that tests share, unless it is to be `fresh`; the others are tabs beside it, or the
    `same` one, which then no longer shows what it did.
    Motion is reduced unless a test asks for it: a style read while it eases would be that of before.
    """
    failed = request.session.testsfailed
    tabs: list[WatchedPage] = []

    def open_page(
        place: str,
        *,
        width: int = 1280,
        theme: str = "light",
        motion: str = "reduce",
        allowed: tuple[str, ...] = (),
        address: str = "",
        fresh: bool = False,
        same: bool = False,
    ) -> Any:
        own = bool((tabs and not same) or address or fresh)
        tab = WatchedPage(shared_tab.open_context()) if own else shared_tab.tab or shared_tab.show("runs", ())
        if tab not in tabs:
            tab.watch(allowed)
        if tab not in tabs:
            tabs.append(tab)
        tab.page.set_viewport_size({"width": width, "height": 900})
        tab.page.emulate_media(color_scheme=theme, reduced_motion=motion)  # type: ignore[arg-type]
        if own:
            tab.page.goto(address or f"{lab_address}#{place}")
        else:
            shared_tab.show(place, allowed)
        return tab.ready()

    yield open_page
    try:
        for tab in tabs:
            tab.check()
    finally:
        for tab in tabs:
            if tab is not shared_tab.tab:
                tab.page.close()
        if shared_tab.tab is not None and shared_tab.tab in tabs:
            shared_tab.tab.page.unroute_all()
        if request.session.testsfailed > failed or any(tab.errors for tab in tabs):
            shared_tab.discard()
