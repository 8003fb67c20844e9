"""JSON and TOML that may come from anybody: what no reader could take is a ``ValueError`` of one line. Quantities, what
another library's error says, and how long something takes, as text."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import textwrap
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

DEEPEST = 50
"""Levels of lists and sections in each other; what zobench writes has ten."""

LARGEST = 1_000_000
"""Characters of a TOML file, which people write: tomllib takes seconds for more."""
LONGEST, _END = 1_500, 300
"""Characters of an error on the terminal, and how many of them its end, which tells the remedy, has."""
_BLANKS = " \t\r\n\v\f\x00\xa0\u200b\u3000\ufeff"


def csv_of(frame: pd.DataFrame) -> str:
    """``frame`` as CSV in full precision; neither a cell nor the name of a column is a formula for a spreadsheet."""
    return str(frame.map(not_a_formula).rename(columns=not_a_formula).to_csv(index=False, lineterminator="\n"))


def not_a_formula(value: Any) -> Any:
    """``value``; text that a spreadsheet would compute gets an apostrophe in front. Numbers are none.

    A spreadsheet can be told to drop blanks at a cell's begin, and knows the wide forms of the signs."""
    if not isinstance(value, str) or len(value) < 2:
        return value
    begin = value.lstrip(_BLANKS)[:1]
    if value[0] not in "\t\r" and begin not in tuple("=+-@\uff1d\uff0b\uff0d\uff20"):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def json_of(text: str | bytes) -> Any:
    """Returns the value of a JSON text. Raises ``ValueError`` where it is none, or is nested deeper than
    :data:`DEEPEST`."""
    try:
        return _checked(json.loads(text))
    except RecursionError:
        raise _too_deep() from None


def toml_of(path: Path) -> dict[str, Any]:
    """Returns the table of a TOML file. Raises ``ValueError`` as :func:`json_of` does, and for a file larger than
    :data:`LARGEST`, and ``OSError``."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"it must be UTF-8 text, but byte {error.start} is not; convert it") from None
    if len(text) > LARGEST:
        raise ValueError(f"a TOML file must have at most {LARGEST:,} characters, but this has {len(text):,}; cut it")
    try:
        body: dict[str, Any] = _checked(tomllib.loads(text))
        return body
    except RecursionError:
        raise _too_deep() from None
    except tomllib.TOMLDecodeError as error:  # which says the line and the column
        raise ValueError(
            f'it must be TOML, but is not: {error}; mend it there: text stands in "quotes", lists in [brackets]'
        ) from None


@contextlib.contextmanager
def toml_in(path: Path) -> Iterator[dict[str, Any]]:
    """The table of the TOML file ``path``, for a ``with`` in which the text of a ``ValueError`` gets the file's
    name."""
    try:
        yield toml_of(path)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


def _checked(tree: Any, depth: int = 0) -> Any:
    if depth > DEEPEST:
        raise _too_deep()
    for inner in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        _checked(inner, depth + 1)
    return tree


def _too_deep() -> ValueError:
    return ValueError(f"lists and sections must be nested {DEEPEST} levels at most, but are more; mend the file")


UNBROKEN = "\ue000"
"""Stands for a blank at which no line ends; a no-break space does not do, for rich breaks lines at it."""
_UNIT = re.compile(r"(?<=\d) (?=(?:[kKMGT]i?B|ms|s|min|h|tokens?)\b|%)")


def with_units(text: str) -> str:
    """``text``, as long as it was, with :data:`UNBROKEN` between each number and its unit."""
    return _UNIT.sub(UNBROKEN, text)


def wrapped(text: str, width: int) -> list[str]:
    """The lines of at most ``width`` characters that ``text`` folds into, none between a number and its unit."""
    return [line.replace(UNBROKEN, " ") for line in textwrap.wrap(with_units(text), width)]


def percent(share: float) -> str:
    """``12%``, and ``under 1%`` where that would be rounded to 0."""
    return "under 1%" if 0 < share < 0.005 else f"{share:.0%}"


def gigabytes(nbytes: int) -> str:
    """``283 kB``, ``31 MB``, ``5.3 GB`` or ``350 GB``, in units of 1e3, 1e6 and 1e9 bytes. What counts in powers of two
    says MiB and GiB everywhere but in tables, which keep the papers' headers."""
    if nbytes < 0.1e9:
        return f"{nbytes / 1e3:.0f} kB" if 0 < nbytes < 0.95e6 else f"{nbytes / 1e6:.0f} MB"
    return f"{nbytes / 1e9:.1f} GB" if nbytes < 100e9 else f"{nbytes / 1e9:.0f} GB"


def alike(sizes: Sequence[int]) -> list[str]:
    """The ``sizes`` in bytes with one unit for all, nothing for 0: ``0.03 GB`` beside ``5.25 GB``."""
    positive = [size for size in sizes if size]
    if not positive or not min(positive) < 0.1e9 <= max(positive):
        return [gigabytes(size) if size else "" for size in sizes]
    return [f"{size / 1e9:.2f} GB" if size else "" for size in sizes]


def duration(seconds: float) -> str:
    """``0.3 s``, ``40 s``, ``3.2 min`` or ``5.1 h``."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def first_line(error: BaseException) -> str:
    """The first line of the error's text; of one without a text, its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def last_line(text: str, otherwise: str = "") -> str:
    """The last line of what a process printed, :func:`shortened`; ``otherwise`` of one that said nothing."""
    return shortened((text.strip().splitlines() or [otherwise])[-1])


def shortened(text: str) -> str:
    """``text`` on one line, without the middle of a long one: a value that it quotes may have a million characters."""
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - _END]} ... {text[-_END:]}"


REPORT_EVERY, SELDOM = 4.0, 60.0
"""Seconds before the first line, and the most between two lines of a file, which are ever further apart."""

_REPORTERS: list[ReportClock] = []
"""The clocks of the waits that are under way, the innermost last."""


class ReportClock:
    """A clock of lines that tell how something goes: the first is due after :data:`REPORT_EVERY` seconds, the next ever
    less often, at least every minute."""

    def __init__(self) -> None:
        self._begun, self._next = time.monotonic(), REPORT_EVERY

    def due(self, *, always: bool = False) -> float | None:
        """The seconds since the begin if a line is due now, or ``always``; else None."""
        spent = time.monotonic() - self._begun
        if spent < self._next and not always:
            return None
        self._next += min(self._next, SELDOM)
        return spent


@contextlib.contextmanager
def reporting(say: Callable[[str], None], what: str, every: float | None = None) -> Iterator[Callable[[str], None]]:
    """Inside, ``say`` is told that ``what`` is under way, and how long: ``every`` so many seconds, or on a terminal
    every :data:`REPORT_EVERY` and elsewhere ever less often. Of nested ones the innermost alone reports. Yields a
    function that changes ``what``."""
    ended, clock = threading.Event(), ReportClock()

    def change(text: str) -> None:
        nonlocal what
        what = text

    def report() -> None:
        while not ended.wait(every or REPORT_EVERY):
            spent = clock.due(always=every is not None or sys.stderr.isatty())
            if spent is not None and _REPORTERS[-1] is clock:
                say(f"{what} for {spent:.0f} s")

    thread = threading.Thread(target=report, daemon=True)
    _REPORTERS.append(clock)
    thread.start()
    try:
        yield change
    finally:
        ended.set()
        thread.join()
        _REPORTERS.remove(clock)
