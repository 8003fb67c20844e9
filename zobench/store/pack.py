"""A store as one file that can be sent: its runs, checked, and of each only what may leave."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

from zobench import models
from zobench.machine import files
from zobench.result import Result
from zobench.result.repeats import number_of
from zobench.runspec.registries import METRICS
from zobench.store.files import Store, first_sweep, machine_of, text_of, without_place
from zobench.store.reading import SCORES
from zobench.store.sendable import MACHINE, sendable, unsendable

ENDING = ".tar.gz"
_FASTEST = 1.5
"""The most times that a step may be faster than its machine's own rates allow: rates are not that wrong."""


@dataclass(kw_only=True)
class PackReport:
    """``runs``: how many are in the archive; ``left_out``: a line for each file that is not, and why."""

    runs: int = 0
    left_out: list[str] = field(default_factory=list)


def pack(root: Path, archive: Path, *, keep_text: bool = False) -> PackReport:
    """Writes the runs of the store in ``root`` into ``archive``, those that can be read and believed.

    Of each only the fields on a list leave (:mod:`zobench.store.sendable`), texts only with ``keep_text``. The same
    runs give the same bytes. Raises ``ValueError`` if there is none, ``OSError`` if it cannot be written.
    """
    store, done, data = Store(root), PackReport(), io.BytesIO()
    with (
        gzip.GzipFile(fileobj=data, mode="wb", filename="", mtime=0) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w") as tar,
    ):
        for result in store.each():
            if why := unfit(result, keep_text):
                done.left_out.append(f"{_path(store, result)}: {why}")
                continue
            sent = sendable(result, keep_text)
            member = tarfile.TarInfo(_path(store, sent).relative_to(root).as_posix())
            content = text_of(sent).encode()
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
            done.runs += 1
    if not done.runs and not done.left_out:
        raise ValueError(f"`--pack` needs runs, but {root} has none that can be read; {first_sweep(root)}")
    done.left_out += store.problems
    files.replace(archive, data.getvalue())
    return done


def _path(store: Store, result: Result) -> Path:
    return store.path(result.spec, machine_of(result), number_of(result))


def unfit(result: Result, keep_text: bool = False) -> str:
    """Why ``result`` is not sent, nor taken from others, with or without its texts; "" if it is."""
    if not re.fullmatch(MACHINE, machine_of(result)):
        return f"its machine must have the name that zobench gives it, but is called {machine_of(result)[:80]!r}"
    if set(result.evaluation.get("scores", ())) - SCORES.keys():
        return "its scores have names that only a plug-in knows"
    return unsendable(without_place(result).spec, keep_text) or implausible(result)


def implausible(result: Result) -> str:
    """Why ``result`` cannot be believed, or not be judged: "" if it can be.

    Who sends a run cannot leave out what it is judged by: one that ended ok must say how much memory its machine has,
    and have rates that give its step a least time. Where nothing can, rates are not asked for: a task, whose tokens are
    not counted and which `zobench finetune` stores without rates, and a model that is not known here.
    """
    share = METRICS.get("floor").of(result)
    limit, peak = result.environment.memory_limit_bytes, result.memory.get("host_rss_peak_bytes") or 0
    unjudged = share is None and result.step_seconds and result.spec.task == "none" and models.is_known(result.spec)
    if result.is_ok and (unjudged or limit is None):
        return "it lacks its machine's rates or memory, without which it cannot be judged; a sweep stores both"
    if result.environment.planted_slowdown:
        return "its steps were made longer on purpose, to test a comparison"
    if len(result.samples.get("step_seconds", [])) > result.spec.steps:
        return f"it has more than the {result.spec.steps} steps that were asked for"
    if share is not None and share > _FASTEST:
        return f"its step takes 1/{share:.1f} of the least time that its machine's rates allow"
    if limit is not None and peak > limit:
        return "its process took more memory than its machine has"
    return ""
