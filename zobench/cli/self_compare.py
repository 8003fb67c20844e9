"""`zobench compare --self-test`: how small a difference this machine can show, from a cell compared with itself."""

from __future__ import annotations

import dataclasses
import json
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from zobench import recipes
from zobench.cli.common import changed

if TYPE_CHECKING:
    from zobench.execute.selfcompare import Comparison, SelfTest
    from zobench.runspec import RunSpec

USUAL = "model=opt-mini,seq_len=512,batch_size=2,steps=30,warmup=3"
"""The cell that is compared with itself where none is named: steps of some hundredths of a second on a CPU."""


def self_compare(
    cell: str | None, results: Path, count: int | None, slowdown: float | None, budget: float | None
) -> NoReturn:
    """Runs the comparisons, prints each and what they come to, and keeps them as JSON in ``results/.selftest``.

    Ends in ``typer.Exit``: 1 if there were too many false alarms, or the slowdown was missed too often.
    """
    from zobench.cli import console
    from zobench.execute import selfcompare, together
    from zobench.machine.files import replace
    from zobench.measure.environment import fingerprint_without_torch

    spec, errors, facts = _cell(cell or USUAL, results), console.error_console(), fingerprint_without_torch()
    shipped = results == recipes.folder("published")  # that of an installed package is not written to
    folder = (Path("results") if shipped else results) / ".selftest"
    folder.mkdir(parents=True, exist_ok=True)
    began = time.time()
    path, told = folder / f"compare-{facts['machine']}-{spec.hash}-{began:.0f}.json", list[dict[str, Any]]()
    why = together.obstacle(spec)
    how = f"one process after the other, because {why}" if why else "side by side, in turns of a step"
    errors.print(f"{spec.label} on {facts['machine']} ({facts['description']}), {how}", markup=False, soft_wrap=True)

    def say(number: int, one: Comparison) -> None:
        errors.print(f"{number:>2}  {_line(one)}", markup=False, soft_wrap=True)
        told.append(dataclasses.asdict(one))
        replace(path, (json.dumps({**head, "comparisons": told}, indent=1, allow_nan=False) + "\n").encode())

    seed = secrets.randbits(32)
    head = {
        "machine": facts["machine"], "description": facts["description"], "spec": spec.to_dict(), "seed": seed,
        "began": began, "until": selfcompare.UNTIL, "most_rounds": selfcompare.MOST,
        "slowdown": selfcompare.SLOWDOWN if slowdown is None else slowdown, "in_turns": not why,
    }  # fmt: skip
    found = selfcompare.self_test(
        spec, selfcompare.one_by_one if why else selfcompare.in_turns, seed=seed,
        count=selfcompare.COMPARISONS if count is None else count, slowdown=head["slowdown"], budget=budget, say=say,
    )  # fmt: skip
    print(page(found))
    errors.print(f"kept: {path}", style="dim", markup=False, soft_wrap=True)
    raise typer.Exit(0 if found.is_passed else 1)


def page(found: SelfTest) -> str:
    """What the comparisons come to, in three lines and a verdict."""
    from zobench.execute.selfcompare import ALARMS, COMPARISONS, MISSES

    count, rounds = len(found.comparisons), sorted(one.equal.pairs for one in found.comparisons)
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
    from zobench.machine.device import choose_device
    from zobench.recipes import matrix
    from zobench.store import query

    if "=" in word and not Path(word).exists():
        values = changed(word.split(","))
        spec = matrix.single(values, choose_device(str(values.pop("device", "auto")))[0])
    else:
        spec = query.named_run(word, results).spec
    if spec.program != "zobench" or spec.task != "none" or spec.gpus > 1:
        raise ValueError(
            "`--self-test` needs a cell of zobench's own, without a task, on one device, because it lengthens its "
            f"steps, but got {spec.label}; name another cell"
        )
    return spec
