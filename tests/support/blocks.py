"""The blocks of a page of the documentation: what it lets a reader run, and what it shows."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if "generated" not in page.relative_to(ROOT).parts),
]
RUNNABLE = ("python", "console", "bash", "sh", "shell")
_FENCE = re.compile(r"^( *)(?:<!-- (?P<mark>[^\n]*?) -->\n\1)?```(?P<language>\S*)\n(?P<text>.*?)^\1```$", re.M | re.S)
_COMMAND = re.compile(r"^(?:\$ |(?:zobench|pip|make|git|python3?) [a-z./-])", re.M)
_INDENTED = re.compile(r"^(?: {4}|\t)(?:\$ |(?:zobench|pip|make|git|python3?) [a-z./-])", re.M)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. ``mark``: the comment on the line above it, or ""."""

    page: Path
    line: int
    language: str
    text: str
    mark: str

    @property
    def place(self) -> str:
        """``docs/data.md:12``"""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def excused(self) -> bool:
        """Whether it says why it is not run, or what runs it."""
        return self.mark.startswith("not run: ")


def blocks(page: Path, text: str | None = None) -> list[Block]:
    """All fenced blocks of ``page``, in order."""
    text = page.read_text(encoding="utf-8") if text is None else text
    return [
        Block(page, text.count("\n", 0, match.start("text")), match["language"], match["text"], match["mark"] or "")
        for match in _FENCE.finditer(text)
    ]


def runner(page: Path) -> str:
    """The test that runs all blocks of ``page``, as the comment at its head says; "" where nothing is said."""
    match = re.search(r"^<!-- blocks run by: (\S+) -->$", page.read_text(encoding="utf-8"), re.M)
    return match[1] if match else ""


def faults(page: Path, text: str | None = None) -> Iterator[str]:
    """What a reader could take for commands although no test would: not fenced, or fenced without a language."""
    text = page.read_text(encoding="utf-8") if text is None else text
    for block in blocks(page, text):
        if block.language not in RUNNABLE and _COMMAND.search(block.text):
            yield f"{block.place}: commands in a block of {block.language or 'no language'}; make it console or bash"
        if block.mark.startswith("not run") and len(block.mark.removeprefix("not run:").split()) < 2:
            yield f"{block.place}: not run, without a reason"
    bare = _FENCE.sub("", text)
    yield from (f"{page.relative_to(ROOT)}: {match[0]!r} in an indented block" for match in _INDENTED.finditer(bare))


def commands(block: Block) -> list[tuple[list[str], list[str]]]:
    """The commands of a shell's block, as words, each with the lines that it is shown to print."""
    text = block.text.replace("\\\n", " ")
    if block.language != "console":
        return [(words, []) for line in text.splitlines() if (words := shlex.split(line, comments=True))]
    _, *commands_shown = re.split(r"^\$ ", text, flags=re.M)
    return [(shlex.split(first), rest) for first, *rest in (part.splitlines() for part in commands_shown)]


def missing(shown: Sequence[str], printed: str, *, exact: bool) -> str:
    """The first line of ``shown`` that ``printed`` lacks after those before it; "" if all are there, in order.

    ``...`` stands for anything. Spaces count as one, and unless ``exact`` any number for any other.
    """
    lines = iter([_plain(line, exact) for line in printed.splitlines()])
    for line in shown:
        if (wanted := _plain(line, exact)) and wanted != "..." and wanted not in lines:
            return line
    return ""


def _plain(line: str, exact: bool) -> str:
    line = " ".join(line.split())
    return line if exact else re.sub(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?", "#", line)
