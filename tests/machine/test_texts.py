"""JSON and TOML from anybody: what nobody could read is one line, however it is wrong."""

from pathlib import Path

import pytest

from zobench.machine.texts import DEEPEST, json_of, toml_of

TOO_DEEP = "^lists and sections must be nested 50 levels at most, but are more; mend the file$"


@pytest.mark.parametrize("depth", [DEEPEST + 2, 100_000])
def test_what_is_nested_deeper_than_any_reader_goes_is_one_line(tmp_path: Path, depth: int) -> None:
    for text in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
        with pytest.raises(ValueError, match=TOO_DEEP):
            json_of(text)
    (tmp_path / "x.toml").write_text(f"a = {'[' * depth}{']' * depth}\n")
    with pytest.raises(ValueError, match=TOO_DEEP):
        toml_of(tmp_path / "x.toml")


def test_what_is_not_too_deep_is_read(tmp_path: Path) -> None:
    text = "[" * DEEPEST + "]" * DEEPEST
    assert str(json_of(text)) == text
    (tmp_path / "x.toml").write_text(f"a = {text[1:-1]}\n")
    assert str(toml_of(tmp_path / "x.toml")["a"]) == text[1:-1]


@pytest.mark.parametrize("text", ["{", "9" * 5000, b"\xff\xfe\xfd"])
def test_what_is_no_json_is_one_line(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        json_of(text)
    assert "\n" not in str(error.value)


def test_what_is_no_toml_names_its_place_and_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "runner.toml"
    path.write_text('title = "x"\n[base]\nmodel = OPT-125M\n')
    message = r"must be TOML, but is not: .*line 3, column 9\); mend it there: text stands in"
    with pytest.raises(ValueError, match=message):
        toml_of(path)
