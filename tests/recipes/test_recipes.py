"""Recipe files: a path first, then the user's folder, then the ones that come with zobench."""

from pathlib import Path

import pytest

from tests.support.files import written
from zobench import recipes


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source tree with one shipped table, and an empty current folder ``here``."""
    (tmp_path / "source" / "zobench").mkdir(parents=True)
    written(tmp_path / "source" / "tables" / "main.toml", "shipped")
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(recipes, "_PACKAGE", tmp_path / "source" / "zobench")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def test_a_wheel_brings_its_own_folder(tree: Path) -> None:
    inside = written(tree / "source" / "zobench" / "recipes" / "tables" / "main.toml", "wheel")
    assert recipes.folder("tables") == inside.parent
    assert recipes.find("tables", "main").read_text() == "wheel"


def test_a_recipe_of_the_current_folder_wins_over_a_shipped_one(tree: Path) -> None:
    assert recipes.find("tables", "main").read_text() == "shipped"
    written(tree / "here" / "tables" / "main.toml", "mine")
    assert recipes.find("tables", "main").read_text() == "mine"
    assert recipes.find("tables", "main.toml").read_text() == "mine"


def test_an_existing_path_wins_over_everything(tree: Path) -> None:
    (tree / "here" / "main.toml").write_text("path")
    assert recipes.find("tables", "main.toml").read_text() == "path"
    assert recipes.find("tables", "./main.toml").read_text() == "path"
    assert recipes.find("tables", tree / "here" / "main.toml").read_text() == "path"
    assert recipes.find("tables", "main").read_text() == "shipped"


def test_names_lists_shipped_and_own_once(tree: Path) -> None:
    for name in ("main", "another"):
        written(tree / "here" / "tables" / f"{name}.toml", "mine")
    assert recipes.names("tables") == ["another", "main"]


def test_an_unknown_name_is_one_line_with_the_nearest_and_the_list(tree: Path) -> None:
    with pytest.raises(ValueError, match="no such recipe") as caught:
        recipes.find("tables", "mian")
    message = "no such recipe in tables: 'mian'; did you mean main? known: main; or give the path of a .toml file"
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["\0", "x" * 5000])
def test_a_name_that_cannot_be_a_file_is_the_same_one_line_error(tree: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"no such recipe in tables: .*; known: main; or give the path"):
        recipes.find("tables", name)
