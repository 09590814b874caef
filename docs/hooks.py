"""Writes the help of every command into the page of the command line while the site is built."""

from __future__ import annotations

from typing import Any

import typer

MARKER = "<!-- commands -->"


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """The page, with the marker replaced by one section per command."""
    return markdown.replace(MARKER, commands_help()) if MARKER in markdown else markdown


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
