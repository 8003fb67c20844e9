"""Checks of a device that nobody has tried, each in a process of its own; here what they find, and the page and JSON
that this makes."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from zobench.result import Facts
from zobench.store.sendable import facts_of

SCHEMA_VERSION = 1
"""1: the first."""
NEEDS_CUDA = "needs a CUDA device"


class Status(enum.StrEnum):
    """How a check ended."""

    OK = "ok"
    FAILED = "failed"
    ABSENT = "not run"


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of a check: ``told`` is one line, ``numbers`` what it was judged by (bytes, seconds, shares, counts;
    None: not finite)."""

    name: str
    status: Status
    told: str
    numbers: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckSettings:
    """The settings of a check: ``seconds`` that it may take; ``device`` is "cpu" or "cuda:N"; ``changes`` are made to
    the cell."""

    device: str
    seconds: float
    changes: Mapping[str, Any] = field(default_factory=dict)
    disk_dir: Path | None = None

    @property
    def on_cuda(self) -> bool:
        return self.device.startswith("cuda")


@dataclass(frozen=True, slots=True)
class Check:
    """One check. ``findings``: the names of what it finds; ``run``: the dotted name of the function that makes them of
    settings. ``share`` of the selftest's time, of which it may take more only where a single round lasts longer;
    ``needs_cuda``: on another device there is nothing to find."""

    name: str
    findings: Sequence[str]
    share: float
    run: str
    needs_cuda: bool = False


def judged(name: str, wrong: str, right: str, **numbers: float) -> Finding:
    """A finding that is ok and says ``right``, unless something is ``wrong``; a number that is not finite is None."""
    finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
    return Finding(name, Status.FAILED if wrong else Status.OK, wrong or right, finite)


def absent(names: Sequence[str], why: str) -> list[Finding]:
    return [Finding(name, Status.ABSENT, why) for name in names]


@dataclass(frozen=True, kw_only=True, slots=True)
class SelftestVerdict:
    """All findings on one device. ``machine``: facts of it and of the software that any result carries."""

    device: str
    machine: Facts
    findings: Sequence[Finding]
    seconds: float

    @property
    def failed(self) -> bool:
        return any(finding.status is Status.FAILED for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """JSON types, to attach to an issue or a pull request: of the machine what may be sent of any run, and what the
        checks told as the page shows it."""
        return {
            "schema_version": SCHEMA_VERSION,
            "verdict": str(Status.FAILED if self.failed else Status.OK),
            "device": self.device,
            "machine": facts_of(self.machine),
            "seconds": round(self.seconds, 1),
            "findings": [asdict(finding) for finding in self.findings],
        }

    def page(self) -> str:
        facts, width = self.machine, max(len(finding.name) for finding in self.findings)
        versions = facts.versions or {}
        software = [f"zobench {versions['zobench']}", f"torch {versions['torch']}", f"Python {versions['python']}"]
        if facts.cuda:
            software.insert(2, f"CUDA {facts.cuda}")
        counts = Counter(finding.status for finding in self.findings)
        total = ", ".join(f"{counts[status]} {status}" for status in Status)
        return "\n".join([
            f"{facts.description}; device {self.device}",
            ", ".join(software),
            "",
            *(f"{finding.status:<8}  {finding.name:<{width}}  {finding.told}" for finding in self.findings),
            "",
            f"{total}, in {self.seconds / 60:.1f} minutes",
        ])  # fmt: skip
