"""The pages hang together: README is short and its links lead somewhere, pictures are those that the script draws, the
result's page has its keys. `make docs` builds the site, where a broken link is an error."""

import ast
import json
import re
import runpy
from pathlib import Path

import pytest

import zobench
from tests.support.blocks import PAGES, blocks
from tests.support.tables import published
from zobench.report import artifacts, render
from zobench.result import Result

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = ROOT / "docs"


def test_readme_is_short_and_its_links_lead_somewhere() -> None:
    assert len(README.splitlines()) <= 180
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", README) + re.findall(r'(?:src|srcset)="([^"]+)"', README)
    assert len(targets) > 20
    assert [target for target in targets if not (ROOT / target).exists()] == []


@pytest.mark.parametrize(("model", "part", "methods"), [("opt-mini", 0, 18), ("SmolLM2-135M", 1, 5)])
def test_the_table_of_methods_is_the_published_one(model: str, part: int, methods: int) -> None:
    """Every cell stands in the method's rows of `zobench table methods_2026`, of whichever machine."""
    runs = [run for run in published() if run.spec.model == model]
    text = render(artifacts.load("methods_2026"), runs, "markdown").replace("options.", "")
    rendered: dict[str, str] = {}
    for line in text.splitlines():
        method = line.split(" | ")[0]
        rendered[method] = rendered.get(method, "") + line
    page = (ROOT / "docs" / "methods_2026.md").read_text(encoding="utf-8").partition("## What is known")[2]
    page = page.split("### On SmolLM2-135M")[part]
    rows = [row.split(" | ") for row in re.findall(r"^\| [^-].*(?= \|$)", page, re.M)[1:]]
    assert len(rows) == methods
    assert [cell for row in rows for cell in row if cell not in rendered[row[0]]] == []


def test_readmes_table_is_the_published_one() -> None:
    """Every value with its interval as `zobench table zo2/table1` shows it, the paper's 2048 tokens first."""
    text = render(artifacts.load("zo2/table1"), published(), "terminal", machine="epyc-2c-2ca1ff", width=400)
    shown = {
        row: " ".join(line for line in text.splitlines() if line.strip().startswith(row + "¹"))
        for row in ("OPT-125M", "OPT-125M, 512 tokens")
    }
    rows = re.findall(r"^\| .*, (?:FP32|BF16) \| (.*) \|$", README, re.M)
    assert len(rows) == 8
    for number, row in enumerate(rows):
        for cell in row.split(" | "):
            value, _, span = cell.rstrip(")").partition(" (")
            wanted = rf"(?<![\d.]){re.escape(value)}(?![\d.]).*?" + (rf"\(x[\d.]+, {re.escape(span)}\)" if span else "")
            assert re.search(wanted, shown["OPT-125M" if number < 4 else "OPT-125M, 512 tokens"]), cell
    assert "1.20 times as fast" in README
    assert "(x1.20, 1.08 to 1.35)" in shown["OPT-125M"]


def test_the_pictures_are_those_that_the_script_draws() -> None:
    script = runpy.run_path(str(DOCS / "pictures.py"))
    drawn = {
        f"{name}-{called}.svg": script["draw"](name, theme)
        for name in script["PICTURES"] for called, theme in script["THEMES"].items()
    }  # fmt: skip
    assert {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "pictures").iterdir()} == drawn


def test_the_page_of_the_results_schema_has_every_key_of_a_stored_result() -> None:
    names = set(re.findall(r"^\| `(\w+)` \|", (DOCS / "result.md").read_text(encoding="utf-8"), re.M))
    stored: set[str] = set()
    for path in (ROOT / "results" / "published").glob("*/*.json"):
        stored |= json.loads(path.read_text(encoding="utf-8")).keys()

    assert stored <= names
    assert names - stored <= set(Result.__dataclass_fields__)


def test_what_the_pages_programs_import_is_on_the_page_of_the_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))  # as docs/conf.py does
    others = runpy.run_path(str(DOCS / "generated.py"))["OTHERS"]
    used = {
        (node.module, alias.name)
        for page in PAGES for block in blocks(page) if block.language == "python"
        for node in ast.walk(ast.parse(block.text)) if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names if node.module.split(".")[0] == "zobench"
    }  # fmt: skip
    names = {(module, name) for module, its in others.items() for name in its}
    names |= {("zobench", name) for name in zobench.__all__}
    names |= {tuple(module.rsplit(".", 1)) for module in others}  # a module as such
    assert ("zobench.testing", "MethodConformance") in used
    assert {
        word for word in used - names if not (word[1].isupper() and word[0] in others)
    } == set()  # constants of a module
