"""Figures as files: a chart always gives the same bytes; colours differ in print and for everybody's eyes."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest
from matplotlib.colors import to_rgb

from tests.support.charts import ALL, BARS, chart, luminance
from zobench.report import figures
from zobench.report.figures import style


@pytest.mark.parametrize("kind", ALL)
def test_the_same_chart_gives_the_same_bytes(kind: str, tmp_path: Path) -> None:
    first = [path.read_bytes() for path in figures.save(ALL[kind], tmp_path / "a")]
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 30, "svg.fonttype": "path", "axes.grid": True}):
        second = [path.read_bytes() for path in figures.save(ALL[kind], tmp_path / "b")]
    assert first == second
    assert figures.svg(ALL[kind]) == figures.svg(ALL[kind])


def test_another_process_with_another_hash_seed_gives_the_same_bytes_and_loads_no_pyplot(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.support import charts as t\n"
        "for kind, chart in t.ALL.items(): t.figures.save(chart, Path(sys.argv[1]) / kind)\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    root = Path(__file__).parents[2]
    environment = {"PYTHONHASHSEED": "7", "PATH": "", "HOME": str(tmp_path), "TZ": "Asia/Tokyo"}
    subprocess.run([sys.executable, "-c", script, tmp_path], check=True, cwd=root, env=environment)
    for kind, one in ALL.items():
        for path in figures.save(one, tmp_path / f"again-{kind}"):
            assert path.read_bytes() == (tmp_path / f"{kind}{path.suffix}").read_bytes(), path.name


def test_svg_for_a_page_has_no_prolog_and_takes_the_width_of_its_place() -> None:
    source = figures.svg(BARS)
    assert source.startswith("<svg ")
    root = ElementTree.fromstring(source)
    assert "viewBox" in root.attrib
    assert not {"width", "height"} & set(root.attrib)
    assert root.get("style", "").startswith("width:100%")
    assert root.get("aria-label") == "Memory"


def test_ids_of_charts_in_one_page_differ_and_every_reference_has_its_target() -> None:
    seen: set[str] = set()
    for one in (*ALL.values(), chart("bars", *BARS.panels, source="Measured on another machine.")):
        source = figures.svg(one)
        ids = re.findall(r' id="([^"]+)"', source)
        targets = set(re.findall(r'(?:url\(#|href="#)([^")]+)', source))
        assert len(ids) == len(set(ids))
        assert targets
        assert targets <= set(ids)
        assert not seen & set(ids)
        seen |= set(ids)


def lightness(colour: str) -> float:
    return 116 * luminance(to_rgb(colour)) ** (1 / 3) - 16


def test_the_first_six_colours_differ_in_grey_print() -> None:
    light = sorted(lightness(code) for code, _, _ in style.SWATCHES[:6])
    assert min(b - a for a, b in pairwise(light)) >= 8
    assert max(light) < 88
