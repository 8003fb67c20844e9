"""Docstrings and comments cite the design pages as ``docs/design/PAGE.md, "Heading"``: page and heading must exist."""

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CITATION = re.compile(r'docs/design/(\w+\.md), "([^"]+)"')
MENTION = re.compile(r"docs/design|\b(?:ARCHITECTURE|METHODS|PERFORMANCE)\b")
"""What speaks of a page, in the form of a citation or not."""


def prose(source):
    """The string literals and comments of a module, each joined into one line."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    texts = [token.string for token in tokens if token.type in (tokenize.STRING, tokenize.COMMENT)]
    return [" ".join(text.split()) for text in texts]


def headings(page):
    """The headings of a page."""
    return re.findall(r"^#+ (.+?) *$", page.read_text(encoding="utf-8"), re.MULTILINE)


def citations(source):
    """(page, heading) of each citation in ``source``."""
    return [citation for text in prose(source) for citation in CITATION.findall(text)]


def faults(source, root=ROOT):
    """What is wrong with the citations in ``source``, one line each."""
    for page, heading in citations(source):
        path = root / "docs" / "design" / page
        if not path.is_file():
            yield f"docs/design/{page} does not exist"
        elif heading not in headings(path):
            yield f'docs/design/{page} has no heading "{heading}"'
    for text in prose(source):
        if loose := MENTION.search(CITATION.sub("", text)):
            yield f'"{loose.group()}" is no citation of the form docs/design/PAGE.md, "Heading"'


def modules():
    return sorted((ROOT / "zobench").rglob("*.py"))


def test_every_citation_names_a_page_and_a_heading_that_exist():
    named_faults = [
        f"{path.relative_to(ROOT)}: {fault}" for path in modules() for fault in faults(path.read_text("utf-8"))
    ]
    assert named_faults == []


@pytest.mark.parametrize("name", ["METHODS.md", "PERFORMANCE.md"])
def test_a_heading_names_one_place(name):
    titles = headings(ROOT / "docs" / "design" / name)
    assert len(titles) == len(set(titles))


def test_planted_citations_are_found():
    source = '"""Broken over lines (docs/design/METHODS.md,\n"No such\nplace")."""\n# docs/design/NOWHERE.md, "Tasks"\n'
    assert list(faults(source + '"""See docs/design/METHODS.md."""')) == [
        'docs/design/METHODS.md has no heading "No such place"',
        "docs/design/NOWHERE.md does not exist",
        '"docs/design" is no citation of the form docs/design/PAGE.md, "Heading"',
    ]
