"""`zobench compare --self-test`: how small a difference this machine can show, from a cell compared with itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import typer

from zobench.cli.common import changed
from zobench.cli.matrices import Terminal
from zobench.execute.selfcompare import ALARMS, COMPARISONS, MISSES, SLOWDOWN, Comparison, SelfTest
from zobench.machine.device import choose_device
from zobench.recipes import matrix
from zobench.runspec import RunSpec
from zobench.session.inputs import check_results, parse_percent, parse_seconds
from zobench.session.self_comparison import compare_with_itself
from zobench.store import query

USUAL = "model=opt-mini,seq_len=512,batch_size=2,steps=30,warmup=3"
"""The cell that is compared with itself where none is named: steps of some hundredths of a second on a CPU."""


def self_compare(
    cell: str | None, other: str | None, results: Path, count: int | None, slowdown: str | None, budget: str | None
) -> NoReturn:
    """Runs the comparisons, prints each and what they come to. Ends in ``typer.Exit``: 1 if there were too many false
    alarms, or the slowdown was missed too often."""
    if other is not None:
        raise ValueError(f"`--self-test` compares one cell with itself, but got a second, {other!r}; leave it out")
    if count is not None and count < 1:
        raise ValueError(f"`--comparisons >= 1` must hold, but got {count}; leave it out for 20")
    share = SLOWDOWN if slowdown is None else parse_percent("--slowdown", slowdown)
    if share == 0:
        raise ValueError("`--slowdown` must be above 0%, but got 0%; leave it out for 5%")
    check_results(results)

    def show(number: int, comparison: Comparison) -> None:
        screen.say(f"{number:>2}  {_line(comparison)}", "default")

    screen = Terminal()
    done = compare_with_itself(
        _cell(cell or USUAL, results), results, screen, count=COMPARISONS if count is None else count,
        slowdown=share, budget=parse_seconds("--budget", budget), show=show,
    )  # fmt: skip
    print(page(done))
    raise typer.Exit(int(not done.is_passed))


def page(found: SelfTest) -> str:
    """What the comparisons come to, in three lines and a verdict."""
    count, rounds = len(found.comparisons), sorted(comparison.equal.pairs for comparison in found.comparisons)
    share = f"{100 * found.slowdown:g} %"
    alarms, needed = int(ALARMS * count), count - int(MISSES * count)
    span = f"{rounds[0]}" if rounds[0] == rounds[-1] else f"{rounds[0]} to {rounds[-1]}"
    told = "can be trusted with" if found.is_passed else "is too unsteady, or busy, for"
    few = f"; {count} comparisons are few to say so, {COMPARISONS} are usual" if count < COMPARISONS else ""
    return "\n".join([
        f"{found.alarms} of {count} comparisons of equals say a difference (at most {alarms} may)",
        f"a slowdown of {share} is found in {found.found} of {count} (at least {needed} should)",
        f"from about {100 * found.least:.1f} % on, nine of ten differences are found; {span} rounds each",
        f"this machine {told} a difference of {share}{few}",
    ])  # fmt: skip


def _line(one: Comparison) -> str:
    def told(ratio: Any) -> str:
        low, high = ratio.interval
        return f"x{ratio.value:.3f}, {low:.3f} to {high:.3f}"

    alarm = "false alarm" if one.equal.differs else "no difference"
    slowed = "found" if one.is_found else "missed"
    return f"equal {told(one.equal)}: {alarm}; slowed {told(one.slowed)}: {slowed}; {one.equal.pairs} rounds"


def _cell(word: str, results: Path) -> RunSpec:
    """The cell of a stored run, or of ``KEY=VALUE,KEY=VALUE``."""
    if "=" in word and not Path(word).exists():
        values = changed(word.split(","))
        spec = matrix.single(values, choose_device(str(values.pop("device", "auto")))[0])
    else:
        spec = query.named_run(word, results).spec
    return spec
