"""Writes docs/cli.md: the help of every command, as `mpvae --help` has it."""

from pathlib import Path

import typer
from typer.cli import get_docs_for_click
from typer.main import get_command

from mpvae.cli import app

PAGE = Path(__file__).with_name("cli.md")


def text() -> str:
    """The page."""
    command = get_command(app)
    context = typer.Context(command)
    made = get_docs_for_click(obj=command, ctx=context, name="mpvae", title="Command line")
    lines = [line.rstrip() for line in made.strip().splitlines()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
