"""README's Python runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from zobench.execute.process import child_environment

README = Path(__file__).parents[1] / "README.md"


def test_every_python_block_of_readme_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        command = [sys.executable, "-c", block]
        done = subprocess.run(command, cwd=tmp_path, env=child_environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
