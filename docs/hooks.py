"""Writes what the code knows into the pages of the reference: the help of every command, and every setting."""

from __future__ import annotations

from typing import Any

import typer


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """The page, with the markers `<!-- commands -->` and `<!-- settings -->` replaced."""
    for marker, write in (("<!-- commands -->", commands_help), ("<!-- settings -->", settings_tables)):
        markdown = markdown.replace(marker, write()) if marker in markdown else markdown
    return markdown


def commands_help() -> str:
    """A section with the `--help` of each command, subcommands included."""
    from regard.cli import app

    return "\n\n".join(sections(typer.main.get_command(app), "regard", None))


def sections(command: Any, name: str, parent: Any) -> list[str]:
    """The sections of a command, or of the commands in a group."""
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    commands = getattr(command, "commands", {})
    if not commands:
        return [f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```"]
    return [text for child, subcommand in commands.items() for text in sections(subcommand, child, context)]


def settings_tables() -> str:
    """A table of each group of settings: training, architecture, and those of each task."""
    from regard.settings import Training
    from regard.tasks import TASKS, find_task
    from regard.tasks.architecture import Architecture

    groups = {"Training": Training(), "Architecture": Architecture()}
    groups |= {f"Task {name}": find_task(name).Settings() for name in TASKS}
    return "\n\n".join(f"### {title}\n\n{settings_table(group)}" for title, group in groups.items())


def settings_table(group: Any) -> str:
    """A line for each setting: name, default, meaning, values, former names."""
    from regard.settings import describe_settings

    lines = ["| setting | default | meaning | values | former name |", "| --- | --- | --- | --- | --- |"]
    for item in describe_settings(group):
        values = ", ".join(filter(None, (item["type"], item["range"])))
        former = ", ".join(f"`{name}`" for name in item["former"])
        lines.append(f"| `{item['name']}` | `{item['default']}` | {item['help']} | {values} | {former} |")
    return "\n".join(lines)
