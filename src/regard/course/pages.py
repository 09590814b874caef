"""The pages `docs/course/*.md`: the texts, code, findings and verdicts of every step, in one language a page."""

from __future__ import annotations

from ..experiments.experiment import Bilingual, Language
from ..experiments.results import VERDICT_LABELS, VERDICT_SIGNS, load_verdict, published_result
from .course import list_chapters
from .source import IMPORTS, write_numpy, write_regard
from .step import Chapter, Evidence, Step

ROUNDING = 1e-12  # differences below it are errors of rounding, whose digits depend on the processor

TEXTS = {
    "course": Bilingual("Course", "课程"),
    "lead": Bilingual(
        "Five chapters of claims about attention. Each step has a claim, numbers that you can change, a few lines of "
        "NumPy that compute exactly what is shown, the same in Regard, and the verdict of an experiment. `regard lab` "
        "opens the course with sliders, arrows to drag and masks to paint. Each chapter is also a notebook.",
        "五章，逐一检验关于注意力的说法。每一步有一个说法、可以改动的数字、正好算出图中数字的几行 NumPy、"
        "用 Regard 的同一计算，以及实验得出的结论。`regard lab` 打开的课程里有滑块、可拖动的箭头和可涂画的掩码。每章另有一个笔记本。",
    ),
    "chapter": Bilingual("Chapter {number}. {title}", "第 {number} 章　{title}"),
    "imports": Bilingual("The code of this page needs", "本页的代码需要"),
    "notebook": Bilingual("This chapter as a notebook", "本章的笔记本"),
    "lab": Bilingual(
        "**In the lab** (`#course?step={step}`): {task}", "**在实验室中**（`#course?step={step}`）：{task}"
    ),
    "numpy": Bilingual("In NumPy:", "用 NumPy："),
    "regard": Bilingual("The same in Regard:", "用 Regard 的同一计算："),
    "measured": Bilingual("Measured", "实测"),
    "steps": Bilingual("Steps", "步骤"),
    "written": Bilingual(
        "These pages are written by `python -m regard.course.write docs/course`.",
        "这些页面由 `python -m regard.course.write docs/course` 生成。",
    ),
}


def write_index(language: Language) -> str:
    """The page of the course: its chapters and steps, with the signs of their verdicts."""
    parts = [f"# {TEXTS['course'](language)}", TEXTS["lead"](language)]
    for chapter in list_chapters():
        link = f"{chapter.name}.md"
        steps = [
            f"{n}. [{step.title(language)}]({link}#{step.name}) {' '.join(map(verdict_sign, step.evidence))}".rstrip()
            for n, step in enumerate(chapter.steps, 1)
        ]
        parts += [f"## [{chapter_title(chapter, language)}]({link})", chapter.lead(language), "\n".join(steps)]
    return "\n\n".join([*parts, TEXTS["written"](language)]) + "\n"


def chapter_title(chapter: Chapter, language: Language) -> str:
    return TEXTS["chapter"](language).format(number=chapter.number, title=chapter.title(language))


def write_page(chapter: Chapter, language: Language) -> str:
    """The page of a chapter."""
    head = [
        f"# {chapter_title(chapter, language)}",
        chapter.lead(language),
        f"[{TEXTS['notebook'](language)}]({chapter.name}.ipynb)",
        TEXTS["imports"](language),
        fence(IMPORTS),
    ]
    return "\n\n".join(head + [write_section(step, language) for step in chapter.steps]) + "\n"


def write_section(step: Step, language: Language) -> str:
    """The section of a step: claim, picture, findings, code, verdicts."""
    parts = [
        f"## {step.title(language)} {{ #{step.name} }}",
        f"> {step.claim(language)}",
        f"![{step.title(language)}](pictures/{step.name}.{language}.svg)",
        bullets(describe_findings(step, language)),
        TEXTS["lab"](language).format(step=step.name, task=step.task(language)),
        TEXTS["numpy"](language),
        fence(write_numpy(step, language)),
    ]
    if step.attend is not None:
        parts += [TEXTS["regard"](language), fence(write_regard(step))]
    if step.evidence:
        verdicts = [describe_evidence(evidence, language, "../experiments.md") for evidence in step.evidence]
        parts += [f"**{TEXTS['measured'](language)}**", "\n".join(verdicts)]
    return "\n\n".join(filter(None, parts))


def fence(code: str) -> str:
    """Code that runs after the code before it; the pages' own tests run it, both languages."""
    return f"```py\n{code.rstrip()}\n```"


def bullets(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def describe_findings(step: Step, language: Language) -> list[str]:
    """The findings of a step for its start values, each with whether it holds."""
    result = step.run(language=language)
    values = {name: Measured(x) if isinstance(x, float) else x for name, x in result.items()}
    return [f"{'✓' if f.check(result) else '✗'} {f.text(language).format(**values)}" for f in step.findings]


class Measured(float):
    """A number whose text does not depend on the processor: an error of rounding is given as a bound."""

    def __format__(self, spec: str) -> str:
        if spec.endswith(("e", "g")) and abs(self) < ROUNDING:
            return f"<{ROUNDING:.0e}"
        return super().__format__(spec)


def verdict_sign(evidence: Evidence) -> str:
    """The sign of a published verdict; nothing where there is none."""
    result = published_result(evidence.experiment)
    return "" if result is None else VERDICT_SIGNS[result["verdict"]["kind"]]


def describe_evidence(evidence: Evidence, language: Language, link: str = "") -> str:
    """A verdict as a list item, its sub-claims as items below it; `link` is where the experiments are described."""
    result = published_result(evidence.experiment)
    name = f"[`{evidence.experiment}`]({link})" if link else f"`{evidence.experiment}`"
    if result is None:
        return f"- {name}"
    verdict = load_verdict(result["verdict"])
    title = Bilingual(**result["claim"]["title"])(language)
    colon = Bilingual(": ", "：")(language)
    lines = [f"- {VERDICT_SIGNS[verdict.kind]} {title} {name}{colon}{VERDICT_LABELS[verdict.kind](language)}"]
    for part in verdict.subclaims:
        if not evidence.subclaims or part.name in evidence.subclaims:
            lines.append(f"    - {'✓' if part.holds else '✗'} {part.text(language)}{colon}{part.figures(language)}")
    return "\n".join(lines)
