"""Every error that the lab raises has a Chinese text of its own, and reaches the page with both languages."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

import regard.lab
from regard.errors import BadInput, TooLarge, Unsupported
from regard.lab.inputs.model_input import LONG, SHORT, limit_hint
from regard.lab.library import NotFound
from regard.lab.server.error_texts import CLASSES, TEXTS, translate

from ..client import Client

LAB = Path(regard.lab.__file__).parent
CHINESE = re.compile("[一-鿿]")
NOT_SHOWN = {
    "inspect/report.py": "the command `regard look`",
    "server/serve.py": "the command `regard lab`",
    "server/experiment_process.py": "also the message of another process",
}
"""Files whose errors, or some of them, a page never shows, and who shows them."""


def message_of(node: ast.expr) -> str | None:
    """The message with a value in place of each expression; None where it is not written here."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return None
    return "".join(str(part.value) if isinstance(part, ast.Constant) else value_of(part) for part in node.values)


def value_of(part: ast.expr) -> str:
    written = ast.unparse(part)
    limits = LONG if "LONG" in written else SHORT
    if "limit_hint" in written:
        return limit_hint(limits.characters if "characters" in written else limits.tokens, limits)
    return "7"


def raised_messages() -> Iterator[tuple[str, str]]:
    """(where, message) of every error in the lab's sources."""
    for path in sorted(LAB.rglob("*.py")):
        file = path.relative_to(LAB).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf8"))):
            call = node.exc if isinstance(node, ast.Raise) else node
            if not isinstance(call, ast.Call):
                continue
            answers = isinstance(call.func, ast.Name) and call.func.id in ("RequestError", "error_response")
            if isinstance(node, ast.Raise) or answers:
                messages = [message for argument in call.args if (message := message_of(argument))]
                yield from ((f"{file}:{call.lineno}", message) for message in messages)


def test_every_error_of_the_lab_has_a_chinese_text() -> None:
    found = [(where, message) for where, message in raised_messages() if where.split(":")[0] not in NOT_SHOWN]
    assert len(found) > 80
    general = set(CLASSES.values())
    lacking = [(where, message) for where, message in found if translate(message)["zh"] in general]
    assert not lacking, "add these to TEXTS of lab/server/error_texts.py"


def test_chinese_texts_use_the_values_that_there_are() -> None:
    for english, chinese in TEXTS.items():
        assert CHINESE.search(chinese) and "您" not in chinese, chinese
        used = [int(name) for _, name, _, _ in string.Formatter().parse(chinese) if name]
        assert all(n < english.count("{}") for n in used), english


@pytest.mark.parametrize(
    ("message", "chinese"),
    [
        (
            f"The text has 3,000 tokens; {limit_hint(SHORT.tokens, SHORT)}",
            "文本有 3,000 个词元，本页最多 2,000 个。请缩短，或在“长文本”页打开。",
        ),
        (
            f"The text has 300,000 characters; {limit_hint(LONG.characters, LONG)}",
            "文本有 300,000 个字符，上限是 200,000。请缩短。",
        ),
        ("The picture is cut off after 60 bytes.", "这个文件无法作为图像读取。"),
        (
            "head is 9; there are 4, so it must be a whole number from 0 to 3.",
            "head 是 9；共有 4 个，应为 0 到 3 的整数。",
        ),
    ],
)
def test_values_stand_in_the_chinese_text(message: str, chinese: str) -> None:
    assert translate(message) == {"en": message, "zh": chinese}


def test_an_error_from_elsewhere_has_the_text_of_its_class() -> None:
    message = "/models/x/config.json: is not JSON (line 3)."
    chinese = {kind: translate(message, kind)["zh"] for kind in (NotFound, BadInput, Unsupported, TooLarge, KeyError)}
    assert len(set(chinese.values())) == 5 and all(map(CHINESE.search, chinese.values()))
    assert translate(message, BadInput)["en"] == message


def test_the_page_gets_both_languages(client: Client) -> None:
    status, answer = client.ask("heads/run", model="meanings", input={"text": " "})
    assert status == 400 and answer["texts"]["en"] == answer["error"]
    assert answer["texts"]["zh"] == "文本是空的。请输入一句话，或选择一个示例。"
    for method, path in (("GET", "/api/nothing"), ("GET", "/static/nothing.js"), ("POST", "/api/heads/nothing")):
        assert CHINESE.search(client.send(method, path)[1]["texts"]["zh"])
