"""What is installed: the files and metadata of wheel and sdist, one version, and what ``dir(zobench)`` shows."""

import ast
import importlib
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path

import pytest

import zobench
from zobench import recipes

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAME = f"zobench-{zobench.__version__}"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of this tree."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(built / f"{NAME}-py3-none-any.whl") as opened:
        yield opened


def files(folder: Path) -> set[str]:
    """The files below ``folder``, hidden ones and compiled ones left out."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path.as_posix() for path in paths if not re.search(r"(^|/)(\.|__pycache__/)", path.as_posix())}


def below(wheel: zipfile.ZipFile, folder: str) -> set[str]:
    return {name.removeprefix(folder) for name in wheel.namelist() if name.startswith(folder)}


def test_the_wheel_holds_the_package_and_its_recipes_whole_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    shipped = {kind: below(wheel, f"zobench/recipes/{kind}/") for kind in recipes.KINDS}
    whole = {kind: files(ROOT / folder) for kind, folder in recipes.KINDS.items()}
    sample = {name for name in whole["published"] if name.startswith("epyc-2c-2ca1ff/OPT-350M-")}
    assert shipped == {**whole, "published": sample}
    assert len(sample) == 18
    of_recipes = {f"recipes/{kind}/{name}" for kind, names in shipped.items() for name in names}
    assert below(wheel, "zobench/") - of_recipes == files(ROOT / "zobench")
    rest = {name for name in wheel.namelist() if not name.startswith("zobench/")}
    about = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    assert rest == {f"{NAME}.dist-info/{name}" for name in about}


def test_the_wheel_is_typed_licensed_and_holds_no_tests_and_nobodys_data(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert "zobench/py.typed" in names
    assert wheel.read(f"{NAME}.dist-info/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert [name for name in names if re.search(r"(^|/)(tests?|conftest\.py|test_[^/]*\.py)(/|$)", name)] == []
    kinds = {Path(name).suffix for name in names if name.startswith("zobench/")}
    assert kinds == {".py", ".toml", ".csv", ".json", ".md", ".css", ".js", ".html", ".typed"}
    assert [name for name in names if str(ROOT).encode() in wheel.read(name)] == []
    assert sum(member.compress_size for member in wheel.infolist()) < 1.5e6


def test_the_sdist_holds_what_builds_and_tests_it(built: Path) -> None:
    with tarfile.open(built / f"{NAME}.tar.gz") as opened:
        names = {name.removeprefix(f"{NAME}/") for name in opened.getnames()}
    needed = {
        "pyproject.toml", "Makefile", "constraints.txt", "LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff",
        ".ci/run", "tests/conftest.py", "tests/release/test_package.py", "docs/design/METHODS.md", "zobench/py.typed",
        "runners/main_table.toml", "results/paper/reference.csv", "results/published/README.md",
    }  # fmt: skip
    assert needed - names == set()
    tops = {name.split("/")[0] for name in names}
    assert tops & {".git", ".venv", ".cache", "dist", "runs", "report", "shared"} == set()
    assert {name.split("/")[1] for name in names if name.startswith("results/")} == {"paper", "published"}


def test_the_metadata_says_what_pyproject_does_and_names_the_version_once(wheel: zipfile.ZipFile) -> None:
    metadata = message_from_bytes(wheel.read(f"{NAME}.dist-info/METADATA"))
    assert (metadata["Name"], metadata["Version"]) == ("zobench", zobench.__version__)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Description-Content-Type"] == "text/markdown"
    python = re.sub(r"\s", "", metadata["Requires-Python"]).split(",")
    assert sorted(python) == sorted(PROJECT["requires-python"].split(","))
    assert set(metadata.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    assert [requirement for requirement in metadata.get_all("Requires-Dist") if "@" in requirement] == []
    points = wheel.read(f"{NAME}.dist-info/entry_points.txt").decode()
    assert points.split() == ["[console_scripts]", "zobench", "=", "zobench.cli:main"]
    said = [path for path in (ROOT / "zobench").rglob("*.py") if f'"{zobench.__version__}"' in path.read_text("utf-8")]
    assert said == [ROOT / "zobench" / "version.py"]
    assert "version" in PROJECT["dynamic"]


def test_results_published_is_found_beside_the_tree_and_in_a_wheel(tmp_path, monkeypatch) -> None:
    named = Path("results/published")
    monkeypatch.chdir(tmp_path)
    assert recipes.results(named) == ROOT / named  # of the tree, where there is none here
    assert recipes.results(Path("results/mine")) == Path("results/mine")
    installed = tmp_path / "site" / "zobench"
    (installed / "recipes" / "published").mkdir(parents=True)
    monkeypatch.setattr(recipes, "_PACKAGE", installed)
    assert recipes.results(named) == installed / "recipes" / "published"
    assert recipes.is_sample(recipes.results(named))
    assert not recipes.is_sample(ROOT / named)
    named.mkdir(parents=True)
    assert recipes.results(named) == named  # a user's own


HOMES = zobench._HOMES


def test_dir_shows_what_is_public_and_all_of_it_is_there() -> None:
    assert dir(zobench) == sorted([*HOMES, "__version__"]) == sorted(zobench.__all__)
    for name, home in HOMES.items():
        assert getattr(zobench, name) is getattr(importlib.import_module(home), name)
    checked = next(
        node for node in ast.parse(Path(zobench.__file__).read_text("utf-8")).body if isinstance(node, ast.If)
    )
    typed = {
        alias.asname: node.module for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert typed == HOMES  # what type checkers see is what there is
    with pytest.raises(AttributeError, match="module 'zobench' has no attribute 'Engines'"):
        zobench.Engines  # noqa: B018
