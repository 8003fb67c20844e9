"""Campaign files: what they say, parts that override a matrix, rounds of a cell that two parts have, and mistakes."""

from pathlib import Path

import pytest

from tests.support.campaigns import HEAD, MATRIX, PART
from tests.support.files import written
from zobench.recipes import campaign
from zobench.session.campaigns import chosen_parts


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    written(tmp_path / "runners" / "mine.toml", MATRIX)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(cwd: Path, text: str) -> campaign.Campaign:
    (cwd / "c.toml").write_text(text)
    return campaign.load(cwd / "c.toml")


def test_a_part_is_a_matrix_with_what_it_changes_of_the_device_s_own(cwd: Path) -> None:
    changes = "repeats = 2\nbase = { eps = 0.01 }\naxes = { seed = [7] }\ninclude = []\n"
    campaign = load(cwd, HEAD + PART.format("a") + PART.format("b") + changes)
    first, second = campaign.on("cpu")
    assert [spec.seed for spec in first.cells] == [0, 1, 5]
    assert [(spec.seed, spec.eps, spec.steps, spec.seq_len) for spec in second.cells] == [(7, 0.01, 4, 32)]
    assert (list(first.rounds), list(second.rounds)) == ([0, 1, 2], [0, 1])
    assert (campaign.name, campaign.title, campaign.selftest) == ("c", "Mine", None)


def test_a_cell_of_two_parts_has_rounds_of_its_own_in_each(cwd: Path) -> None:
    again = "repeats = 2\naxes = { seed = [1, 2] }\ninclude = []\n"
    last = "axes = { seed = [2] }\ninclude = []\n"
    parts = load(cwd, HEAD + PART.format("a") + PART.format("b") + again + PART.format("c") + last).on("cpu")
    assert [list(on.rounds) for on in parts] == [[0, 1, 2], [3, 4], [5, 6, 7]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD, "c.toml: `parts` must be given in the file, but is missing; write [[parts]]"),
        (HEAD + PART.format("a") * 2, "c.toml: [[parts]] must have names that differ, but got a, a; rename one"),
        (HEAD + PART.format("a") + "repeats = 0",
         "c.toml: part a: `repeats > 0` must hold in [[parts]], but got 0; raise it"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_the_file(cwd: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"^c\.toml: ") as caught:
        load(cwd, text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ('methods = ["ZO-SGD"]',
         "mine.toml: `methods` of a part choose those of a protocol, but the file has none; leave it out"),
        ('base = { dtype = "fastest 16-bit" }',
         'mine.toml: `dtype` of a part must be a type, but got "fastest 16-bit", which another machine '
         'takes for another; write axes = { dtype = ["fp32", "bf16"] }'),
    ],
)  # fmt: skip
def test_a_part_that_no_matrix_can_be_says_why_and_the_others_have_their_cells(cwd, more, message) -> None:
    campaign = load(cwd, HEAD + PART.format("a") + more + "\n" + PART.format("b"))
    first, second = campaign.on("cpu")
    assert (first.obstacle, first.cells) == (message, ())
    assert (second.obstacle, len(second.cells)) == ("", 3)
    with pytest.raises(ValueError, match=r"^part a: ") as caught:
        chosen_parts(campaign, "cpu", "a")
    assert str(caught.value) == f"part a: {message}"
