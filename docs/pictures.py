"""Draws the static pictures of the pages, light and dark: ``python docs/pictures.py`` writes docs/pictures/*.svg."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent / "pictures"
RANKS = FOLDER.parent / "ranks.json"
THEMES: Mapping[str, Mapping[str, str]] = {
    "light": {"ink": "#1c2733", "soft": "#5b6b7b", "line": "#b9c4cf", "rest": "#eceff3", "mark": "#b3261e",
              "up": "#c8dcf3", "go": "#cfe9d2", "down": "#f6dfc0"},
    "dark": {"ink": "#e6ebf0", "soft": "#9fb0c0", "line": "#4a5866", "rest": "#2a323b", "mark": "#ff8a80",
             "up": "#28496e", "go": "#27553a", "down": "#6a4a1d"},
}  # fmt: skip
Theme = Mapping[str, str]
Parts = Iterator[str]


def box(x: float, y: float, w: float, h: float, fill: str, label: str, theme: Theme, size: int = 13) -> str:
    """A rectangle with a label in its middle."""
    shape = f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="4" fill="{theme[fill]}" stroke="{theme["line"]}"/>'
    return shape + text(x + w / 2, y + h / 2 + size * 0.36, label, theme, size=size, anchor="middle")


def text(x: float, y: float, said: str, theme: Theme, *, ink: str = "ink", size: int = 13, anchor: str = "start",
         weight: str = "normal") -> str:  # fmt: skip
    """A line of text whose baseline begins (or has its middle or end) at x, y."""
    return (
        f'<text x="{x}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" '
        f'fill="{theme[ink]}">{escape(said)}</text>'
    )


def title(said: str, theme: Theme) -> str:
    """The picture's first line."""
    return text(16, 26, said, theme, size=15, weight="600")


def below(y: float, said: str, theme: Theme) -> str:
    """A line below the picture."""
    return text(16, y, said, theme, ink="soft", size=12)


def arrow(x1: float, y1: float, x2: float, y2: float, theme: Theme, ink: str = "soft") -> str:
    """An arrow from the first point to the second; its head is the marker of that ink."""
    ends = f'x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"'
    return f'<line {ends} stroke="{theme[ink]}" stroke-width="1.6" marker-end="url(#{ink})"/>'


def step(theme: Theme) -> Parts:
    """Three lanes of one step: upload, compute and offload of six blocks, which overlap."""
    lanes = (("upload", "up", 0, 84), ("compute", "go", 84, 100), ("offload", "down", 184, 84))
    yield title("One step of a model whose blocks rest in host memory or on disk", theme)
    for row, (name, fill, begin, width) in enumerate(lanes):
        y = 44 + row * 44
        yield text(16, y + 21, name, theme, ink="soft")
        for block in range(5):
            yield box(92 + begin + block * 100, y, width, 32, fill, f"block {block}", theme)
    yield text(92, 192, "time", theme, ink="soft", size=12)
    yield arrow(124, 188, 770, 188, theme)
    told = "While block 1 computes both points W + eps z and W - eps z, block 2 is uploaded and block 0 goes back."
    yield text(16, 218, told, theme, ink="soft", size=12)


def points(theme: Theme) -> Parts:
    """The two points of a MeZO step on a loss curve over the line W + c z."""
    yield text(
        16, 26, "A point is (seed, scale): it stands for the weights W + scale * z(seed)", theme, size=15, weight="600"
    )
    yield f'<path d="M110 66 C 240 250, 420 250, 690 78" fill="none" stroke="{theme["ink"]}" stroke-width="2"/>'
    for x, y, label in ((235, 172.5, "(s, -eps)"), (345, 203.0, "(none, 0)"), (455, 191.6, "(s, +eps)")):
        yield f'<circle cx="{x}" cy="{y}" r="5.5" fill="{theme["mark"]}"/>'
        yield f'<line x1="{x}" y1="{y}" x2="{x}" y2="244" stroke="{theme["line"]}" stroke-dasharray="4 4"/>'
        yield text(x, 262, label, theme, anchor="middle")
    yield arrow(90, 244, 760, 244, theme)
    yield text(756, 262, "scale along z(seed s)", theme, ink="soft", size=12, anchor="end")
    yield text(100, 58, "loss", theme, ink="soft", size=12)
    yield text(
        16, 290, "MeZO asks for the losses at two points: g = (L(s, +eps) - L(s, -eps)) / (2 eps).", theme, ink="soft"
    )


def entries(theme: Theme) -> Parts:
    """Weights after some steps: base, and entries of the journal that are replayed on it."""
    yield title("Weights are a base and a journal of entries", theme)
    yield box(16, 48, 190, 90, "rest", "base weights (GBs)", theme)
    for n in range(1, 5):
        x = 250 + (n - 1) * 132
        yield box(x, 58, 112, 70, "down", f"entry {n}", theme)
        yield text(x + 56, 118, "seed, g, lr", theme, ink="soft", size=11, anchor="middle")
        yield arrow(x - (40 if n == 1 else 18), 93, x - 4, 93, theme)
    yield text(
        16, 172, "W after step 4 = base, then W -= lr * (g * z(seed) + weight_decay * W) for entries 1, 2, 3, 4.", theme
    )
    yield text(
        16,
        196,
        "The journal takes tens of bytes a step. Replaying it needs no forward pass.",
        theme,
        ink="soft",
        size=12,
    )


def cells(theme: Theme) -> Parts:
    """A matrix of axes, its cells, each run in a process of its own, and the stored results that fill tables."""
    yield text(
        16, 26, "A cell is one run of a matrix, in a fresh process, with one outcome", theme, size=15, weight="600"
    )
    for row, model in enumerate(("OPT-125M", "OPT-350M")):
        for column, engine in enumerate(("resident", "offload")):
            yield box(16 + column * 128, 50 + row * 62, 120, 52, "up", model, theme)
            yield text(76 + column * 128, 95 + row * 62, engine, theme, ink="soft", size=11, anchor="middle")
    yield text(138, 190, "matrix: 2 axes, 4 cells", theme, ink="soft", size=12, anchor="middle")
    yield arrow(274, 106, 316, 106, theme)
    for row, (name, fill) in enumerate((("ok", "go"), ("ok", "go"), ("oom", "down"), ("skipped", "rest"))):
        yield box(324, 46 + row * 33, 130, 27, fill, name, theme, size=12)
    yield text(389, 190, "one JSON file each", theme, ink="soft", size=12, anchor="middle")
    yield arrow(462, 106, 504, 106, theme)
    yield box(512, 50, 250, 114, "rest", "tables, figures, page", theme)
    yield text(637, 142, "measured, predicted, paper", theme, ink="soft", size=11, anchor="middle")


def tiers(theme: Theme) -> Parts:
    """Where blocks rest: device, host memory, disk, a checkpoint's own files."""
    yield title("A tier is where the blocks rest between two uses", theme)
    yield box(16, 46, 746, 62, "go", "", theme)
    yield text(32, 72, "device", theme, weight="600")
    yield text(32, 94, "embedding, head, resident blocks", theme, ink="soft", size=12)
    for slot in range(3):
        yield box(470 + slot * 94, 58, 84, 38, "up", f"slot {slot}", theme, size=12)
    rows = (
        ("pinned", "host memory, locked:", "fastest on a GPU"), ("pageable", "host memory", ""),
        ("disk", "a file, direct I/O", ""), ("checkpoint", "the safetensors or GGUF", "itself, only read"),
    )  # fmt: skip
    for n, (name, first, second) in enumerate(rows):
        x = 16 + n * 188
        yield box(x, 168, 182, 84, "rest", "", theme)
        yield text(x + 12, 192, name, theme, weight="600")
        yield text(x + 12, 214, first, theme, ink="soft", size=12)
        yield text(x + 12, 232, second, theme, ink="soft", size=12)
        yield arrow(x + 70, 164, x + 70, 114, theme)
        if name != "checkpoint":
            yield arrow(x + 110, 112, x + 110, 162, theme)
    yield text(
        16,
        278,
        "Blocks pass through the slots, uploaded and (but for a checkpoint) written back.",
        theme,
        ink="soft",
        size=12,
    )


def ranks(theme: Theme) -> Parts:
    """The lanes of one rank of 1, 2, 4 and 8 GPUs over a step, as docs/ranks.json (``tools/timelines.py``) has them."""
    rows = json.loads(RANKS.read_text(encoding="utf-8"))
    longest = max(end for row in rows for _, _, end in row["events"])
    yield title("Predicted: a step of OPT-1.3B on 1, 2, 4 and 8 H20s, the lanes of one rank", theme)
    for number, row in enumerate(rows):
        y = 44 + number * 68
        yield text(16, y + 17, row["name"], theme, weight="600")
        yield text(16, y + 36, f"{row['seconds']:.3f} s", theme, ink="soft", size=12)
        for kind, begin, end in row["events"]:
            lane = ("upload", "compute", "offload").index(kind)
            x, width = 124 + begin / longest * 630, (end - begin) / longest * 630
            yield (
                f'<rect x="{x:.1f}" y="{y + lane * 17}" width="{width:.1f}" height="14" '
                f'fill="{theme[("up", "go", "down")[lane]]}" stroke="{theme["line"]}" stroke-width="0.6"/>'
            )
    yield below(330, "Each row from above: upload, compute, offload. A box is a block; time goes to the right.", theme)


PICTURES: Mapping[str, tuple[int, Callable[[Theme], Parts]]] = {
    "step": (232, step), "points": (304, points), "entries": (210, entries), "cells": (204, cells),
    "tiers": (292, tiers), "ranks": (342, ranks),
}  # fmt: skip
"""The height and the drawing of each; all are 778 wide."""


def draw(name: str, theme: Theme) -> str:
    """The picture as a whole SVG file."""
    height, drawing = PICTURES[name]
    heads = "".join(
        f'<marker id="{ink}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{theme[ink]}"/></marker>'
        for ink in ("soft",)
    )
    font = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 778 {height}" font-family="{font}">'
    return "\n".join([head, f"<defs>{heads}</defs>", *drawing(theme), "</svg>"]) + "\n"


if __name__ == "__main__":
    for name in PICTURES:
        for called, theme in THEMES.items():
            (FOLDER / f"{name}-{called}.svg").write_text(draw(name, theme), encoding="utf-8")
