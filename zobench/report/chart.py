"""Chart: a finished figure as plain data, ready to be drawn: bars, lines, a heat map, timelines, labelled points."""

from __future__ import annotations

from dataclasses import dataclass, field

KINDS = ("bars", "lines", "heatmap", "timeline", "pareto")


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """One value, in the unit that the axis names. ``low`` and ``high``: its 95 % interval, where there is one.

    ``source`` is "measured" or "predicted". A mark without a value stands where a run ended otherwise: ``failure`` says
    how ("out of memory"); without either, nothing was run.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    source: str = "measured"
    failure: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One colour of the legend: a mark for every position of its panel, and the paper's values where it has any."""

    label: str
    marks: tuple[Mark, ...]
    paper: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One operation on a lane of a timeline, in seconds from the step's first operation."""

    lane: str
    kind: str
    block: int
    start: float
    end: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One pair of axes. ``positions`` are the labels along x; ``xs`` their numbers where the axis is numeric (lines).

    ``from_zero``: whether a linear y begins at 0, as that of a quantity whose ratios count.
    ``limit``: (value, label) of a line across, such as the memory of a device. A heat map has one row per series and
    colours ``marks`` by value, named by ``y_label``; its colours part at the limit, as ratios do at (1.0, "equal").
    Of labelled points ("pareto") ``sizes`` are a second cost of each position, in ``size_unit``, None if not known.
    ``events`` are a timeline's, of ``source``; ``message`` says why a panel has nothing to draw.
    """

    title: str = ""
    x_label: str = ""
    y_label: str = ""
    positions: tuple[str, ...] = ()
    xs: tuple[float, ...] = ()
    series: tuple[Series, ...] = ()
    log_x: bool = False
    log_y: bool = False
    from_zero: bool = field(default=False, repr=False)
    limit: tuple[float, str] | None = None
    sizes: tuple[float | None, ...] = ()
    size_unit: str = ""
    events: tuple[Event, ...] = ()
    source: str = field(default="measured", repr=False)
    message: str = ""

    @property
    def marks(self) -> list[Mark]:
        """The marks of all series."""
        return [mark for series in self.series for mark in series.marks]

    @property
    def reported(self) -> list[float]:
        """The paper's values of all series."""
        return [value for series in self.series for value in series.paper if value is not None]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw; how a run failed is something."""
        drawn = any(mark.value is not None or mark.failure for mark in self.marks)
        return bool(self.message) or not (drawn or self.events or self.reported)


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """A figure: panels side by side (timelines: one above the other, on one common time axis), remarks below.

    ``name`` like "zo2/figure3"; ``source`` says where the numbers come from, machine included.
    """

    name: str
    kind: str
    title: str
    source: str
    panels: tuple[Panel, ...]
    remarks: tuple[str, ...] = ()

    @property
    def drawn(self) -> tuple[Panel, ...]:
        """The panels that have something to draw."""
        return tuple(panel for panel in self.panels if not panel.is_empty)

    @property
    def lacking(self) -> tuple[str, ...]:
        """Lines in place of the other panels."""
        empty = [panel for panel in self.panels if panel.is_empty]
        return tuple(": ".join(filter(None, (panel.title, panel.message or "nothing was run."))) for panel in empty)
