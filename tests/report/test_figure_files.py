"""Figures as files: a chart always gives the same bytes; colours differ for everybody's eyes."""

import math
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from matplotlib.colors import to_rgb

from tests.support.charts import ALL, BARS, svg
from zobench.report import figures
from zobench.report.figures import style


def test_a_users_settings_of_matplotlib_change_no_byte_and_are_left_alone(tmp_path: Path) -> None:
    first = [path.read_bytes() for path in figures.save(BARS, tmp_path / "a")]
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 30, "svg.fonttype": "path", "axes.grid": True}):
        before = dict(matplotlib.rcParams)
        second = [path.read_bytes() for path in figures.save(BARS, tmp_path / "b")]
        assert dict(matplotlib.rcParams) == before
    assert first == second


def test_another_process_with_another_hash_seed_gives_the_same_bytes_and_loads_no_pyplot(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.support import charts as t\n"
        "for kind in ('bars', 'timeline'): t.figures.save(t.ALL[kind], Path(sys.argv[1]) / kind)\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    root = Path(__file__).parents[2]
    environment = {"PYTHONHASHSEED": "7", "PATH": "", "HOME": str(tmp_path), "TZ": "Asia/Tokyo"}
    subprocess.run([sys.executable, "-c", script, tmp_path], check=True, cwd=root, env=environment)
    for kind in ("bars", "timeline"):
        for path in figures.save(ALL[kind], tmp_path / f"again-{kind}"):
            assert path.read_bytes() == (tmp_path / f"{kind}{path.suffix}").read_bytes(), path.name


def test_no_output_holds_a_date_or_a_version_and_a_pdf_has_truetype_fonts(tmp_path: Path) -> None:
    for path in figures.save(BARS, tmp_path / "a"):
        match = re.search(rb"20\d\d-\d\d-\d\d|CreationDate|Producer|Software|Matplotlib v", path.read_bytes())
        assert not match, path.name
        if path.suffix == ".pdf":
            assert b"/FontFile2" in path.read_bytes()
            assert b"/Type3" not in path.read_bytes()


@pytest.mark.parametrize("kind", ["lines", "timeline"])
def test_every_reference_in_an_svg_has_its_target(kind: str, tmp_path: Path) -> None:
    source = svg(ALL[kind], tmp_path)
    ids = re.findall(r' id="([^"]+)"', source)
    targets = set(re.findall(r'(?:url\(#|href="#)([^")]+)', source))
    assert len(ids) == len(set(ids))
    assert targets
    assert targets <= set(ids)


VISIONS = {  # Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}


@pytest.mark.parametrize("vision", VISIONS)
def test_all_colours_differ_with_any_colour_vision(vision: str) -> None:
    seen = [lab(to_rgb(code), VISIONS[vision]) for code, _, _ in style.SWATCHES]
    assert min(math.dist(a, b) for a, b in combinations(seen, 2)) > 12
    assert len({marker for _, marker, _ in style.SWATCHES}) == len(style.SWATCHES)


def lab(colour: Any, matrix: Any) -> tuple[float, float, float]:
    """CIE L*a*b* (D65) of ``colour`` as it is seen through ``matrix``."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    r, g, b = (min(1.0, max(0.0, sum(m * c for m, c in zip(row, linear, strict=True)))) for row in matrix)
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)
