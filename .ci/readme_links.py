"""Makes README's relative links lead to a repository: ``python .ci/readme_links.py https://host/owner/name v0.2.0``.

README is also the text of the package on PyPI, which has none of the other files. Runs before a release is built; what
is committed keeps its relative links. Needs no package.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
LINK = re.compile(r'(\]\(|src(?:set)?=")([^)"\s]+)')
"""Of Markdown, or of a picture in HTML."""


def absolute(text: str, repository: str, tag: str) -> str:
    """``text`` with every link to a file of the tree as one to ``repository`` at ``tag``; pictures to the raw file."""

    def lead(found: re.Match[str]) -> str:
        before, target = found.groups()
        if "://" in target or target.startswith("#"):
            return found[0]
        return f"{before}{repository}/{'blob' if before == '](' else 'raw'}/{tag}/{target}"

    return LINK.sub(lead, text)


if __name__ == "__main__":
    README.write_text(absolute(README.read_text(encoding="utf-8"), *sys.argv[1:]), encoding="utf-8")
