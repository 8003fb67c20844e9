"""Marks that look the same in all figures: predicted, the paper's, failures, intervals, limits; and their legend."""

from __future__ import annotations

from dataclasses import dataclass, field

from matplotlib.artist import Artist
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from zobench.report.figures import style

_FAILURES = ("x", "+", "1", "2", "3")


@dataclass(slots=True)
class Legend:
    """What the figure's legend names, in the order of ranks: series, then predictions, the paper, failures, limits."""

    entries: dict[tuple[int, str], Artist] = field(default_factory=dict)
    """Rank and label -> an example."""
    failures: dict[str, str] = field(default_factory=dict)
    """Reason of a failure -> its marker."""

    def add(self, rank: int, label: str, handle: Artist) -> None:
        """Names ``handle``, unless the label is there already or empty."""
        if style.plain(label):
            self.entries.setdefault((rank, style.plain(label)), handle)

    def predicted(self) -> None:
        """A bar or a cell that was computed, not measured."""
        light = style.lighter(style.MUTED, 0.6)
        self.add(1, "predicted", Patch(facecolor=light, edgecolor=style.MUTED, hatch=style.HATCH, linewidth=0.5))

    def interval(self, handle: Artist) -> None:
        """Error bars or a band."""
        self.add(1, "95 % interval", handle)

    def paper(self) -> None:
        """A value that a paper reports, as a diamond alone."""
        self.add(2, "paper", paper_marker([], []))

    def failure(self, reason: str) -> str:
        """The marker of ``reason``; the last marker stands for all reasons that are left over."""
        reason = style.plain(reason)
        if reason in self.failures:
            return self.failures[reason]
        marker = _FAILURES[min(len(self.failures), len(_FAILURES) - 1)]
        self.failures[reason] = marker
        return marker

    def limit(self, label: str) -> None:
        """A dashed line across."""
        self.add(4, label, Line2D([], [], color=style.INK, linestyle=(0, (4, 2)), linewidth=0.9))

    def items(self) -> list[tuple[str, Artist]]:
        """Labels and handles in the order in which they are shown."""
        reasons: dict[str, list[str]] = {}
        for reason, marker in self.failures.items():
            reasons.setdefault(marker, []).append(reason)
        crosses = [(3, "; ".join(group), cross([], [], marker, style.INK)) for marker, group in reasons.items()]
        named = [(rank, label, handle) for (rank, label), handle in self.entries.items()]
        return [(label, handle) for _, label, handle in sorted([*named, *crosses], key=lambda entry: entry[0])]


def paper_marker(xs: list[float], ys: list[float]) -> Line2D:
    """Hollow diamonds: white inside, so that they show on any bar."""
    line = Line2D(xs, ys, linestyle="none", marker="D", markersize=3.6, markeredgewidth=0.8, zorder=5)
    line.set(markerfacecolor="white", markeredgecolor=style.INK)
    return line


def cross(xs: list[float], ys: list[float], marker: str, colour: str) -> Line2D:
    """The mark of a run that gave no value."""
    line = Line2D(xs, ys, linestyle="none", marker=marker, markersize=4.5, markeredgewidth=1.1, zorder=6)
    line.set_markeredgecolor(colour)
    return line
