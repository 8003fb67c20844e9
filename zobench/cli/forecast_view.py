"""Screens of `zobench plan` and `zobench predict`, and what they write as JSON. Every number is marked as predicted."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from zobench.cli import console
from zobench.execute.plan import gigabytes

if TYPE_CHECKING:
    from zobench.predict.choices import Choice, Place
    from zobench.predict.gpu import Prediction
    from zobench.predict.hardware import Gpu

_NUMBERS = ("tokens/s", "of best", "device", "host", "disk")
_CHOSEN = ("engine", "tier", "noise", "granularity", "slots", "resident_blocks", "writeback_every")
_OF_GPUS = ("tokens/s", "range", "device", "host", "disk")
_LEAST = 20
"""Characters that the column which folds must have: the longest setting has 19."""


def plan_dict(place: Place, best: Choice, others: Sequence[Choice]) -> dict[str, Any]:
    return {
        "gpu": place.gpu.name, "host_bytes": place.host, "disk_bytes_per_second": place.disk,
        "source": "predicted", "fits": not best.lacks, "best": _choice_dict(best),
        "alternatives": [_choice_dict(one) for one in others],
    }  # fmt: skip


def _choice_dict(choice: Choice) -> dict[str, Any]:
    return {**prediction_dict(choice.prediction), "lacks": choice.lacks}


def prediction_dict(known: Prediction) -> dict[str, Any]:
    """All that is predicted, as JSON."""
    low, high = known.range
    return {
        "source": "predicted", "label": known.spec.label, "spec": _unusual(known), "bound": known.bound,
        "tokens_per_second": known.tokens_per_second, "tokens_per_second_low": low, "tokens_per_second_high": high,
        "step_seconds": known.step_seconds, "device_bytes": known.device_bytes, "host_bytes": known.host_bytes,
        "disk_bytes": known.disk_bytes, "memory_share": known.memory_share, "seconds": dict(known.parts),
    }  # fmt: skip


def _unusual(known: Prediction) -> dict[str, Any]:
    """The fields that are not at their defaults."""
    from zobench.runspec import DECLARED

    values = known.spec.to_dict()
    return {key: value for key, value in values.items() if key == "model" or value != DECLARED[key].default}


def show_one(screen: Console, place: Place, best: Choice, others: Sequence[Choice], ways: Sequence[Choice]) -> None:
    known = best.prediction
    screen.print(Text(f"{_about(known)} on {_where(place)}", style="bold"))
    if best.lacks:
        told = f"does not fit ({best.lacks}): nearest is {_bytes(known)}, with {_settings(best)}"
        screen.print(Text(told + _remedy(best, place), style="yellow"))
    else:
        screen.print(f"fits: {_rate(known)} tokens/s, {known.step_seconds:.3g} s a step; {_bytes(known)}")
        screen.print(f"bound by: {known.bound} ({_shares(known)})")
        screen.print(f"settings: {_settings(best)}")
    rows = [(_difference(one, best), one) for one in others]
    rows += [(_words(one), one) for one in _baselines(ways, best, others)]
    lines = [(_row(one, best, label), bool(one.lacks)) for label, one in rows]
    screen.print(_table((*_NUMBERS, "bound", "otherwise"), lines, ("bound",), screen.width))
    _print_notes(screen, (place.gpu,), _footnote(place))


def _remedy(best: Choice, place: Place) -> str:
    """What would make room for what does not fit, where the host can be given more."""
    from zobench.predict.choices import HOST_RESERVE

    if best.lacks != "host memory":
        return ""
    needed = math.ceil((best.prediction.host_bytes + HOST_RESERVE) / 1e9)
    disk = "" if place.disk else "; with --disk SPEED blocks can rest on a disk"
    return f"; it needs --host {needed}GB, {gigabytes(HOST_RESERVE)} of it for the system{disk}"


def _table(
    names: Sequence[str], rows: Sequence[tuple[Sequence[str], bool]], spare: Sequence[str], width: int
) -> RichTable:
    """``rows`` of texts and whether they are dim. The last column alone folds; columns without any text are left out,
    and those of ``spare``, in turn, where it would have less than :data:`_LEAST` characters of ``width``."""
    wide = {name: max((len(row[k]) for row, _ in rows), default=0) for k, name in enumerate(names[:-1])}
    shown = {name: max(len(name), most) + 2 for name, most in wide.items() if most}
    for name in spare:
        if width - sum(shown.values()) < _LEAST:
            shown.pop(name, None)
    kept = [k for k, name in enumerate(names) if name in shown or name == names[-1]]
    table = console.columns(*(names[k] for k in kept), numbers=(*_NUMBERS, *_OF_GPUS))
    for column in table.columns[:-1]:
        column.no_wrap = True
    for row, dim in rows:
        table.add_row(*(Text(row[k], style="dim" if dim else "", overflow="fold") for k in kept))
    return table


def _baselines(ways: Sequence[Choice], best: Choice, others: Sequence[Choice]) -> list[Choice]:
    """MeZO and ZO2 as the papers run them, where they are not shown already."""
    shown = {one.spec.hash for one in (best, *others)}
    plain = [one for one in ways if one.spec.noise == "torch" and not one.spec.resident_blocks]
    return [one for one in plain if one.spec.hash not in shown]


def _difference(one: Choice, best: Choice) -> str:
    """The settings of ``one`` that are not those of ``best``."""
    return " ".join(
        f"{key}={value}" for key in (*_CHOSEN, "wire") if (value := getattr(one.spec, key)) != getattr(best.spec, key)
    )


def _row(one: Choice, best: Choice, label: str) -> list[str]:
    known = one.prediction
    share = "" if best.lacks else f"x{known.tokens_per_second / best.prediction.tokens_per_second:.2f}"
    told = f"{label}: lacks {one.lacks}" if one.lacks else label
    return [f"~{_short(known.tokens_per_second)}", share, *_sizes(known), _bound(known), told]


def _bound(known: Prediction) -> str:
    """In a word: of the link its direction."""
    return known.bound.removeprefix("link (").removesuffix(")")


def show_all(screen: Console, rows: Sequence[tuple[Place, Choice]]) -> None:
    place, best = rows[0]
    screen.print(Text(f"{_about(best.prediction)}, {_host(place)}", style="bold"))
    words = [_words(best).split() for _, best in rows if not best.lacks]
    shared = [word for word in words[0] if all(word in other for other in words)] if len(words) > 1 else []
    if shared:
        screen.print(f"settings of all that fit: {' '.join(shared)}")
    lines = [([place.gpu.name, *_of_gpu(best, shared)], bool(best.lacks)) for place, best in rows]
    names = ("GPU", *_OF_GPUS, "bound", "settings")
    screen.print(_table(names, lines, ("bound", "range", "disk", "host"), screen.width))
    _print_notes(screen, [place.gpu for place, _ in rows], _footnote(None))


def _of_gpu(best: Choice, shared: Sequence[str]) -> list[str]:
    """What a GPU's best choice comes to, with the settings that are not ``shared`` by all; or what it lacks."""
    if best.lacks:
        return ["·", *[""] * len(_OF_GPUS), f"lacks {best.lacks}"]
    known = best.prediction
    low, high = (_short(edge) for edge in known.range)
    numbers = [f"~{_short(known.tokens_per_second)}", f"{low} to {high}", *_sizes(known)]
    return [*numbers, _bound(known), " ".join(word for word in _words(best).split() if word not in shared)]


def _about(known: Prediction) -> str:
    spec = known.spec
    return f"{spec.model} {spec.dtype}, batch {spec.batch_size}, {spec.seq_len} tokens"


def _where(place: Place) -> str:
    gpu = place.gpu
    link = f"PCIe {gpu.pcie_generation:.0f} x{gpu.pcie_lanes:.0f}"
    return f"{gpu.name} ({gigabytes(int(gpu.memory))}, {link}), {_host(place)}"


def _host(place: Place) -> str:
    disk = f", a disk of {gigabytes(int(place.disk))}/s" if place.disk else ""
    return f"{gigabytes(int(place.host))} of host memory{disk}"


def _rate(known: Prediction) -> str:
    low, high = known.range
    return f"~{_short(known.tokens_per_second)} ({_short(low)} to {_short(high)})"


def _short(rate: float) -> str:
    from zobench.report.quantity import rounded

    return rounded(rate, ".0f")


def _bytes(known: Prediction) -> str:
    device, host, disk = _sizes(known)
    more = [f"{host} of host memory"] * bool(host) + [f"{disk} of disk"] * bool(disk)
    return ", ".join([f"{device} on the device", *more])


def _sizes(known: Prediction) -> list[str]:
    return [gigabytes(size) if size else "" for size in (known.device_bytes, known.host_bytes, known.disk_bytes)]


def _shares(known: Prediction) -> str:
    """What a step spends, the largest first; transfers run beside the rest."""
    parts = sorted(known.parts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {seconds:.2g} s" for name, seconds in parts if seconds > 0.01 * known.step_seconds)


def _settings(choice: Choice) -> str:
    """As `zobench run` takes them."""
    return " ".join(f"--set {word}" for word in _words(choice).split())


def _words(choice: Choice) -> str:
    """The engine, and the settings that are not the usual ones: ``engine=offload granularity=linear``."""
    values: Mapping[str, Any] = {"engine": choice.spec.engine, **_unusual(choice.prediction)}
    return " ".join(f"{key}={values[key]}" for key in _CHOSEN if values.get(key, "pinned") not in ("pinned", "device"))


def _print_notes(screen: Console, gpus: Sequence[Gpu], told: str) -> None:
    """What keeps zobench from running on any of ``gpus``, then ``told``; wrapped at words."""
    for line in (*cautions(gpus), told):
        screen.print(Text(line, style="dim"))


def cautions(gpus: Sequence[Gpu]) -> list[str]:
    """A line for each GPU of which its file says why a prediction may not come true."""
    return [f"Caution, {gpu.name}: {gpu.caution}." for gpu in gpus if gpu.caution]


def _footnote(place: Place | None) -> str:
    """What a prediction is, and how far off it may be."""
    whose = {
        "fitted": "on the GPU that the constants were fitted on", "anchored": "on a GPU fitted to runs of its own",
        "other": "on a GPU known by its data sheet alone",
    }  # fmt: skip
    about = f" {whose[place.gpu.errors]}" if place else ""
    return (
        f"~ predicted, not measured. The range is what nine of ten of the papers' values were within{about}; zobench's "
        "own engine has never run on such a GPU. `zobench list gpus` and docs/predictions.md say what is guessed."
    )


def tables(names: Sequence[str], known: Sequence[Prediction], gpu: Gpu, results: Path, form: str) -> str:
    """The matrix's tables: what is predicted of them, then what is stored, and the paper's values."""
    from zobench.report import artifacts, predicted
    from zobench.report.forecasts import VALUES
    from zobench.store import Store

    screen, stored = console.answer_console(), Store(results).load()
    items = [table for name in names if (table := artifacts.laid_out(artifacts.load(name))) is not None]
    tables = [item for item in items if any(metric.name in VALUES for metric in item.metrics)]
    if not tables:
        _list(known)
    width, colored = max(console.NARROWEST, screen.width), console.is_colored(screen)
    texts = [predicted.render(one, known, stored, form, width=width, color=colored) for one in tables]
    notes = (*cautions([gpu]), _footnote(None))
    return "\n".join([*texts, *(textwrap.fill(note, width) for note in notes)]) + "\n"


def _list(known: Sequence[Prediction]) -> None:
    """The cells of a matrix that has no table of what is predicted."""
    table = console.columns("cell", "tokens/s", "device", "host", "disk", "bound", numbers=_NUMBERS)
    for one in known:
        rate = f"~{_short(one.tokens_per_second)}" if one.fits else "out of memory"
        table.add_row(one.spec.label, rate, *_sizes(one), one.bound)
    console.answer_console().print(table)
