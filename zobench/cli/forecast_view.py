"""Screens of `zobench plan` and `zobench predict`. Every number is marked as predicted."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from zobench.cli import console
from zobench.cost import sizes
from zobench.cost.choices import Setup, TargetMachine, cautions, footnote
from zobench.cost.footprint import MARGIN
from zobench.cost.gpu import Prediction
from zobench.cost.hardware import Gpu
from zobench.machine.texts import gigabytes
from zobench.store import Store

_NUMBERS = ("tokens/s", "of best", "device", "host", "disk")
_OF_GPUS = ("tokens/s", "range", "device", "host", "disk")
_LEAST = 20  # characters that the column which folds must have: the longest setting has 19


def show_one(
    screen: Console, target: TargetMachine, best: Setup, others: Sequence[Setup], ranked: Sequence[Setup]
) -> None:
    prediction = best.prediction
    screen.print(Text(f"{_about(prediction)} on {target.description}", style="bold"))
    if best.lacks:
        text = f"does not fit ({best.lacks}): nearest is {_bytes(prediction)}, with {_settings(best)}"
        screen.print(Text(text + best.remedy(target), style="yellow"))
    else:
        rate, low, high = map(_short, (prediction.tokens_per_second, *prediction.range))
        speed = f"~{rate} ({low} to {high}) tokens/s, {prediction.step_seconds:.3g} s a step"
        screen.print(f"fits: {speed}; {_bytes(prediction)}")
        screen.print(f"bound by: {prediction.bound} ({_shares(prediction)})")
        screen.print(f"settings: {_settings(best)}")
    rows = [(choice.changes_of(best), choice) for choice in others]
    shown = {choice.spec.hash for choice in (best, *others)}
    rows += [(choice.settings, choice) for choice in ranked if choice.is_papers and choice.spec.hash not in shown]
    lines = [(_row(choice, best, " ".join(words)), bool(choice.lacks)) for words, choice in rows]
    screen.print(_table((*_NUMBERS, "bound", "otherwise"), lines, ("bound", "of best", "disk", "host"), screen.width))
    _print_notes(screen, (target.gpu,), *prediction.notes, footnote(target, [best, *(choice for _, choice in rows)]))


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


def _row(choice: Setup, best: Setup, label: str) -> list[str]:
    prediction = choice.prediction
    share = "" if best.lacks else f"x{prediction.tokens_per_second / best.prediction.tokens_per_second:.2f}"
    text = f"{label}: lacks {choice.lacks}" if choice.lacks else label
    return [f"~{_short(prediction.tokens_per_second)}", share, *_sizes(prediction), _bound(prediction), text]


def _bound(prediction: Prediction) -> str:
    """Returns the resource that bounds the step in a word: of the link its direction."""
    return prediction.bound.removeprefix("link (").removesuffix(")")


def show_all(screen: Console, rows: Sequence[tuple[TargetMachine, Setup]]) -> None:
    target, best = rows[0]
    by_card = [(target.gpu.name, choice) for target, choice in rows]
    about = f"{_about(best.prediction)}, {MARGIN:.0%} of each GPU's memory, {target.host_text}"
    _show_rows(screen, about, "GPU", by_card)
    _print_notes(screen, [target.gpu for target, _ in rows], *best.prediction.notes, footnote(None))


def show_methods(screen: Console, target: TargetMachine, rows: Sequence[tuple[str, Setup]]) -> None:
    """A row for each way to tune a model at ``target``, with its best settings."""
    prediction = rows[0][1].prediction
    _show_rows(screen, f"{_about(prediction)} on {target.description}", "tuned by", rows)
    steps = "A step of ZO learns less than one of backpropagation; tokens/s compare what steps cost."
    _print_notes(screen, (target.gpu,), *prediction.notes, steps, footnote(target))


def _show_rows(screen: Console, title: str, heading: str, rows: Sequence[tuple[str, Setup]]) -> None:
    """The best choice of each of ``rows``, with the settings that are not shared by all that fit."""
    screen.print(Text(title, style="bold"))
    words = [best.settings for _, best in rows if not best.lacks]
    shared = [word for word in words[0] if all(word in other for other in words)] if len(words) > 1 else []
    if shared:
        screen.print(f"settings of all that fit: {' '.join(shared)}")
    lines = [([name, *_of_gpu(best, shared)], bool(best.lacks)) for name, best in rows]
    names = (heading, *_OF_GPUS, "bound", "settings")
    screen.print(_table(names, lines, ("bound", "range", "disk", "host"), screen.width))


def _of_gpu(best: Setup, shared: Sequence[str]) -> list[str]:
    """Returns the numbers of a GPU's best choice, with the settings that are not ``shared`` by all; or what the GPU
    lacks."""
    if best.lacks:
        return ["·", *[""] * len(_OF_GPUS), f"lacks {best.lacks}"]
    prediction = best.prediction
    low, high = (_short(edge) for edge in prediction.range)
    numbers = [f"~{_short(prediction.tokens_per_second)}", f"{low} to {high}", *_sizes(prediction)]
    return [*numbers, _bound(prediction), " ".join(word for word in best.settings if word not in shared)]


def _about(prediction: Prediction) -> str:
    spec = prediction.spec
    return f"{spec.model} {spec.dtype}, batch {spec.batch_size}, {sizes.usual(spec)} tokens"


def _short(rate: float) -> str:
    from zobench.report.sheet import rounded

    return rounded(rate, ".0f")


def _bytes(prediction: Prediction) -> str:
    device, host, disk = _sizes(prediction)
    more = [f"{host} of host memory"] * bool(host) + [f"{disk} of disk"] * bool(disk)
    return ", ".join([f"{device} on the device", *more])


def _sizes(prediction: Prediction) -> list[str]:
    sizes = prediction.device_bytes, prediction.host_bytes, prediction.disk_bytes
    return [gigabytes(size) if size else "" for size in sizes]


def _shares(prediction: Prediction) -> str:
    """Returns the parts of a step's time, the largest first; transfers run beside the rest."""
    parts = sorted(prediction.parts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {seconds:.2g} s" for name, seconds in parts if seconds > 0.01 * prediction.step_seconds)


def _settings(choice: Setup) -> str:
    """Returns the settings as `zobench run` takes them."""
    return " ".join(f"--set {word}" for word in choice.settings)


def _print_notes(screen: Console, gpus: Sequence[Gpu], *notes: str) -> None:
    """Prints the obstacle that keeps zobench from running on any of ``gpus``, then ``notes``; wrapped at words."""
    for line in (*cautions(gpus), *notes):
        screen.print(Text(line, style="dim"))


def tables(names: Sequence[str], predictions: Sequence[Prediction], gpu: Gpu, results: Path, form: str) -> str:
    """The matrix's tables: what is predicted of them, then what is stored, and the paper's values."""
    from zobench.report import Table, artifacts
    from zobench.report.forecasts import VALUES
    from zobench.report.render import render_predicted

    screen, store = console.answer_console(), Store(results)
    stored = store.load()
    console.show_problems(store.problems)
    items = [item for name in names if isinstance(item := artifacts.load(name), Table)]
    tables = [item for item in items if any(metric.name in VALUES for metric in item.metrics)]
    if not tables:  # the cells of a matrix without a table of what is predicted
        listed = console.columns("cell", "tokens/s", "device", "host", "disk", "bound", numbers=_NUMBERS)
        for each in predictions:
            rate = f"~{_short(each.tokens_per_second)}" if each.fits else "out of memory"
            listed.add_row(each.spec.label, rate, *_sizes(each), each.bound)
        screen.print(listed)
    width, colored = max(console.NARROWEST, screen.width), console.is_colored(screen)
    texts = [render_predicted(item, predictions, stored, form, width=width, color=colored) for item in tables]
    notes = (*cautions([gpu]), footnote(None))
    return "\n".join([*texts, *(textwrap.fill(note, width) for note in notes)]) + "\n"
