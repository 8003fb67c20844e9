"""The help: commands and options in groups, as plain text of any width."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand, TyperGroup

CELL = "What runs"
WHERE = "Where it runs"
SLURM = "On Slurm"
LONG = "How often and how long"
KEPT = "What is kept and shown"
"""The groups of options, in the words of the help."""
MEASURE, TUNE, LOOK, FORESEE, ELSEWHERE = "Measure", "Fine-tune", "Look", "Predict", "Elsewhere"
"""The groups of commands, in the order of the help."""
_LONGEST = 200
"""Characters of a command's line, which is folded and not cut."""
_RARE = ("campaign", "calibrate")
"""Commands that stand below the others of their group."""
_TYPE = re.compile(r"<[^<>]+>$")
"""How Typer writes a type of Python, as ``<list[Path]>``, which says nothing to people."""


class CommandGroup(TyperGroup):
    """Commands under the headings that they name, what is usual first."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the groups, and last the commands without one."""
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in (MEASURE, TUNE, LOOK, FORESEE, ELSEWHERE)}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            heading = getattr(command, "rich_help_panel", None) or "Commands"
            groups.setdefault(heading, []).append((name, command.get_short_help_str(_LONGEST)))
        for heading, rows in groups.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(sorted(rows, key=lambda row: row[0] in _RARE))


class Command(TyperCommand):
    """A command whose options stand under the headings that they name (``rich_help_panel``)."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes arguments, then options without a group, then each group in the order of its first option."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                words, help_text = record
                section = "Arguments" if param.param_type_name == "argument" else "Options"
                shown = "" if section == "Arguments" else max(param.opts, key=len).strip("-").upper()
                record = (_TYPE.sub(shown, words).rstrip(), help_text)
                groups.setdefault(getattr(param, "rich_help_panel", None) or section, []).append(record)
        for heading, records in groups.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)
