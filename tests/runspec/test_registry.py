"""Registries: zobench's own and plug-ins', which are found without being imported and fail in one line."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.files import written
from zobench.runspec import registry
from zobench.runspec.registry import Registry

OWN = """
from dataclasses import dataclass

@dataclass(frozen=True)
class One:
    name: str

OWN = (One("first"), One("second"))
"""


def install(folder: Path, package: str, entries: str, source: str) -> None:
    """A package as pip leaves it: a module, and the metadata with its entry points."""
    (folder / f"{package}.py").write_text(source)
    info = folder / f"{package}-1.0.dist-info"
    written(info / "METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[zobench.things]\n{entries}\n")


@pytest.fixture
def things(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry[registry.Named]]:
    (tmp_path / "own_things.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    caches = (registry.plug_ins, registry._loaded, registry._by_name)
    for cache in caches:
        cache.cache_clear()
    yield Registry("thing", "own_things:OWN", "own_things:One")
    for cache in caches:
        cache.cache_clear()
    for name in ("own_things", "guest"):
        sys.modules.pop(name, None)


def test_own_ones_come_first_and_a_plug_in_is_imported_only_when_it_is_named(things, tmp_path) -> None:
    install(tmp_path, "guest", "added = guest:ADDED", "from own_things import One\nADDED = One('added')\n")
    assert things.names() == ("first", "second", "added")
    assert things.get("second").name == "second"
    assert "guest" not in sys.modules
    assert things.get("added").name == "added"
    assert [thing.name for thing in things] == ["first", "second", "added"]
    assert things.provider("added") == "guest 1.0"
    (tmp_path / "guest-1.0.dist-info" / "METADATA").unlink()
    registry.plug_ins.cache_clear()
    assert things.provider("added") == "guest"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import nowhere_at_all", "must be importable, but ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("raise RuntimeError('two\\nlines')", "must be importable, but RuntimeError: two lines; mend or remove"),
        ("import sys; sys.exit(3)", "must be importable, but SystemExit: 3; mend or remove"),
        ("ADDED = 3", "must be a One, but guest:ADDED is of type int; name one"),
        ("from own_things import One\nADDED = One('other')", "must have that name, but guest:ADDED is called 'other'"),
    ],
)  # fmt: skip
def test_a_plug_in_that_fails_is_one_line_that_names_it(source, message, things, tmp_path) -> None:
    install(tmp_path, "guest", "added = guest:ADDED", source)
    with pytest.raises(ValueError, match="the thing 'added' of the package guest") as error:
        things.get("added")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_plug_in_that_hangs_is_told(things, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(registry, "PATIENCE", 0.01)
    source = "import time\nfrom own_things import One\nADDED = One('added')\ntime.sleep(0.3)\n"
    install(tmp_path, "guest", "added = guest:ADDED", source)
    assert things.get("added").name == "added"
    warning = "the thing 'added' of the package guest is still being imported after 0.01 s; Ctrl-C ends it"
    assert capsys.readouterr().err == f"zobench: {warning}\n"


def test_a_name_that_two_packages_give_is_refused(things: Registry[registry.Named], tmp_path: Path) -> None:
    install(tmp_path, "guest", "first = guest:ADDED", "from own_things import One\nADDED = One('first')\n")
    with pytest.raises(ValueError, match="one package must give the thing 'first', but zobench and guest do"):
        things.get("first")
    assert things.names() == ("first", "second")


def test_an_origin_tells_the_package_its_version_and_any_edit_without_an_import(things, tmp_path) -> None:
    install(tmp_path, "guest", "added = guest:ADDED", "raise RuntimeError\n")
    first = things.origin("added")
    assert first.startswith("guest 1.0 ")
    (tmp_path / "guest.py").write_text("raise RuntimeError  # edited\n")
    assert things.origin("added") != first
    assert things.origin("first") == ""
