"""The blocks of docs/trainer.md, one after another: the page is right to the digit that it shows."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "trainer.md").read_text(encoding="utf-8")


def test_the_page_runs_as_it_is_written(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        exec(block, names)
    (shown,) = re.findall(r"It printed `([^`]*)`", PAGE)
    printed = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("loss "))
    digits = re.compile(r"-?\d+\.\d+")
    assert digits.sub("", printed) == digits.sub("", shown)
    assert [float(n) for n in digits.findall(printed)] == pytest.approx(
        [float(n) for n in digits.findall(shown)], rel=0.05
    )
    before, after = (float(number) for number in digits.findall(printed))
    assert after < before
