"""Sentences over which the roles of heads are measured, beside the text that is shown.

They repeat words and phrases, put words between a noun and what belongs to it, and end with different punctuation.
"""

from __future__ import annotations

from ...data.languages import unread_script
from ...errors import RegardError
from ..lab import Lab
from ..server.jobs import Job
from .capture import Capture
from .head_roles import MAX_TOKENS
from .role_targets import TaggedWord

TAGGERS = {"en": "tagger", "zh": "tagger-zh"}
"""Shipped models that tag the words of a language."""
MAX_TRANSLATED = 4
"""Sentences that a model that generates text is given: each is generated first."""
PROBE_TEXTS = {
    "en": (
        "The small brown dog chased the cat, and the cat chased a very small mouse.",
        "My sister bought three fresh apples at the old market near the river.",
        "When the tired nurse finished her long shift, she called her friend and went home.",
        "He opened the heavy wooden door, but the heavy wooden door closed again.",
        "Why did the young teacher give every student in the class a new blue book?",
        "The report that the committee wrote last year surprised most of the members.",
        "Our neighbours have never seen such a big yellow bird in their garden before.",
        "The two engineers will probably repair the broken engine with these simple tools.",
        "She has always loved quiet music, and quiet music has always calmed her.",
        "In the end the little boy could not find his other shoe under the wide bed.",
    ),
    "zh": (
        "小狗追着小猫跑，小猫追着一只很小的老鼠跑。",
        "我姐姐昨天在河边的旧市场买了三个新鲜的苹果。",
        "护士下班以后给她的朋友打了电话，然后她回家了。",
        "他打开了那扇沉重的木门，可是那扇沉重的木门又关上了。",
        "老师为什么给班里的每个学生都发了一本新的蓝色的书？",
        "委员会去年写的报告让大多数成员感到意外。",
        "我们的邻居从来没有在花园里见过这么大的黄色的鸟。",
        "两位工程师可能会用这些简单的工具修理那台坏了的机器。",
        "她一直喜欢安静的音乐，安静的音乐也一直让她平静。",
        "最后那个小男孩没能在宽大的床下找到他的另一只鞋。",
    ),
}


def choose_language(lab: Lab, model: str, text: str) -> str | None:
    """The language of the sentences for a model: one that it reads and the text is in; None where there is none."""
    languages = lab.library.entry(model).languages or tuple(PROBE_TEXTS)
    return next((code for code in languages if unread_script(text, (code,)) is None), None)


def capture_probes(lab: Lab, model: str, language: str | None, job: Job) -> list[Capture]:
    """The forward passes of a model over the sentences of a language; none for a model of images, sound or graphs."""
    entry = lab.library.entry(model)
    if entry.modality not in ("text", "pair"):
        return []
    probes = PROBE_TEXTS.get(language or "", ())[: MAX_TRANSLATED if entry.generates else None]
    captures = []
    for n, probe in enumerate(probes):
        job.report(n, len(probes), {"en": "reading sentences", "zh": "正在读例句"})
        captures.append(lab.capture({"model": model, "input": {"text": probe}}, job))
    return captures


def is_countable(capture: Capture) -> bool:
    """Whether all pairs of a head fit in memory at once."""
    return max((max(each.queries, each.keys) for each in capture.attentions), default=0) <= MAX_TOKENS


def spoken_text(capture: Capture) -> str:
    """The text that a side's tokens cover, at their offsets."""
    tokens = [token for token in capture.tokens.get("source", ()) if not token.special]
    letters = [" "] * max((token.end for token in tokens), default=0)
    for token in tokens:
        letters[token.start : token.end] = token.text.ljust(token.end - token.start)[: token.end - token.start]
    return "".join(letters)


def tag_words(lab: Lab, text: str, language: str | None, job: Job) -> list[TaggedWord]:
    """The words of a text with the tags of the shipped tagger; empty where there is none for the language.

    A tagger of characters marks where words begin and end (B-, M-, E-, S-): these are joined.
    """
    tagger = TAGGERS.get(language or "")
    if tagger is None or not text.strip():
        return []
    try:
        tagged = lab.capture({"model": tagger, "input": {"text": text}}, job)
    except RegardError:
        return []
    words: list[TaggedWord] = []
    for token, item in zip(tagged.tokens["source"], tagged.prediction["items"], strict=True):
        mark, _, tag = item["label"].rpartition("-")
        if mark in ("M", "E") and words:
            words[-1] = words[-1]._replace(end=token.end)
        else:
            words.append(TaggedWord(token.start, token.end, tag))
    return words
