"""What is declared of a spec's fields: the lists that follow from it, options of plug-ins, the names of results."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from zobench.result import Result
from zobench.runspec import DECLARED, RunSpec, option_defaults
from zobench.runspec.registry import Registry

PUBLISHED = sorted((Path(__file__).parents[2] / "results/published").glob("*/*.json"))


def test_every_published_result_keeps_its_name() -> None:
    assert len(PUBLISHED) == 928
    for path in PUBLISHED:
        body = json.loads(path.read_text())
        spec = Result.from_dict(body).spec
        name = re.sub(r"-r\d+$", "", path.stem)  # -r2 is its second repeat
        assert (spec.hash, name[-12:]) == (body["spec_hash"], spec.hash), path


def test_every_field_has_one_line_and_a_default_that_it_accepts() -> None:
    for name, declared in DECLARED.items():
        assert declared.about, name
        assert "\n" not in declared.about, name
        assert declared.check(declared.default) == declared.default, name
        assert not declared.choices or declared.default in declared.choices, name


@dataclass(frozen=True)
class Tool:
    """A program of a plug-in, as far as a spec asks."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs "mezo", which takes options, and "plain", which takes none."""
    both = {"mezo": Tool("mezo", {"beta": 0.5, "rank": 8, "mode": "fast", "exact": False}), "plain": Tool("plain")}
    get, names = Registry.get, Registry.names
    added = {"program": both}
    monkeypatch.setattr(Registry, "names", lambda self: (*names(self), *added.get(self.noun, ())))
    monkeypatch.setattr(Registry, "get", lambda self, name: added.get(self.noun, {}).get(name) or get(self, name))


@pytest.mark.usefixtures("tools")
def test_an_option_is_told_and_hashed_only_where_it_is_not_default() -> None:
    plain = RunSpec(model="OPT-125M", program="mezo")
    assert plain.hash != RunSpec(model="OPT-125M").hash
    same = plain.replace(options={"beta": 0.5, "rank": 8})
    assert same == plain
    assert (same.hash, same.label, dict(same.options)) == (plain.hash, plain.label, {})
    other = plain.replace(options={"rank": 4, "beta": 1})
    assert other.label == "OPT-125M resident fp32 b1 s2048 program=mezo beta=1.0 rank=4"
    assert len({plain, same, other}) == 2
    assert plain.hash != other.hash
    assert other.hash == plain.replace(options={"beta": 1.0, "rank": 4}).hash
    assert (other.option("beta"), other.option("mode"), other.option("none")) == (1.0, "fast", None)
    assert option_defaults(other) == {"beta": 0.5, "rank": 8, "mode": "fast", "exact": False}
    back = RunSpec.from_dict(json.loads(json.dumps(other.to_dict())))
    assert (back, back.hash) == (other, other.hash)
    assert back.replace(**{"options.rank": 2}).options == {"beta": 1.0, "rank": 2}
    assert RunSpec.from_dict({"model": "OPT-125M", "program": "mezo", "options.beta": 0.25}).option("beta") == 0.25


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(
    ("program", "options", "text"),
    [
        ("mezo", {"betta": 1},
         "unknown option 'betta' of method=zo-sgd, scheme=full, program=mezo; did you mean beta?"),
        ("plain", {"beta": 1},
         "unknown option 'beta' of method=zo-sgd, scheme=full, program=plain; leave options.beta out"),
        ("mezo", {"rank": 1.5}, "`options.rank` must be of type int, but got 1.5; for example options.rank=8"),
        ("mezo", {"beta": float("nan")}, "`options.beta` must be finite, but got nan; write options.beta=0.5"),
        ("mezo", 3, "`options` must be a table, but got 3; write options.NAME=VALUE"),
    ],
)  # fmt: skip
def test_an_option_that_nothing_declares_or_of_another_type_is_refused(program: str, options: Any, text: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        RunSpec(model="OPT-125M", program=program, options=options)
    assert str(caught.value).startswith(text)
