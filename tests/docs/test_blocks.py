"""Every shell and Python block of README and of the pages runs here, names the test that runs it, or says why not."""

from pathlib import Path

import pytest

from tests.support.blocks import PAGES, ROOT, RUNNABLE, blocks, commands, faults, missing, runner
from tests.support.files import written
from tests.support.rates import calibrate
from zobench import programs
from zobench.execute import process, sweep
from zobench.measure.environment import fingerprint_without_torch

HERE = [
    page for page in PAGES if not runner(page) and any(b.language in RUNNABLE and not b.excused for b in blocks(page))
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader is: a folder with the published results, on a machine whose rates are known. Cells run in this
    process: each in its own would load torch and transformers again."""
    for place in (process, sweep):
        monkeypatch.setattr(place, "run_in_process", lambda spec, **_: programs.run(spec))
    calibrate(tmp_path, fingerprint_without_torch().machine)
    (tmp_path / "results" / "published").symlink_to(ROOT / "results" / "published")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_looks_like_a_command_is_in_a_block_that_is_run_or_says_why_not(page: Path) -> None:
    assert list(faults(page)) == []
    if test := runner(page):
        assert page.name in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("page", HERE, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run_and_print_what_it_shows(page, folder, zobench, capsys) -> None:
    for block in blocks(page):
        write(folder, page, block.line, block.text)
        if block.language not in RUNNABLE or block.excused:
            continue
        if block.language == "python":
            exec(compile(block.text, block.place, "exec"), {"__name__": "__main__"})
            capsys.readouterr()
            continue
        for (program, *words), shown in commands(block):
            assert program == "zobench", f"{block.place}: {program} is not run by tests; say why"
            code, out, err = zobench(*words)
            assert code == 0, f"{block.place}: {err}"
            lacking = missing(shown, out + "\n" + err, exact=block.mark == "exact")
            assert not lacking, f"{block.place} shows {lacking!r}, but it printed:\n{out}{err}"


def write(folder: Path, page: Path, line: int, text: str) -> None:
    """Writes the block that begins below ``line`` into the file that the paragraph above it names alone, if it does."""
    above = page.read_text(encoding="utf-8").splitlines()[: line - 1]
    named = next((line for line in reversed(above) if line and not line.startswith("<!--")), "")
    if named.startswith("`") and named.endswith("`:"):
        written(folder / named.strip("`:"), text)


def test_a_planted_fault_is_found() -> None:
    page = ROOT / "docs" / "planted.md"
    assert list(faults(page, "```\n$ zobench list\n```\n"))
    assert list(faults(page, "    zobench list\n"))
    assert list(faults(page, "<!-- not run: -->\n```bash\nzobench list\n```\n"))
    assert not list(faults(page, "<!-- not run: needs a GPU -->\n```bash\nzobench list\n```\n"))
