"""The user's own data: formats, templates, splits, and one line for every mistake in a task's file."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.files import written
from zobench.data.tasks import draft
from zobench.data.tasks.file import load
from zobench.data.tasks.prompts import form_of
from zobench.data.tasks.read import LabelledSet, read
from zobench.data.tasks.task import Example, Task
from zobench.runspec import RunSpec
from zobench.runspec.registries import TASKS

ROWS = [{"text": f"row {n}", "label": n % 2, "tags": ["a", "b"], "answers": {"text": [f"{n}", "x"]}} for n in range(10)]
DATA = '[data]\npath = "rows.jsonl"\nsplit = { seed = 0, dev = 2, test = 0.3 }\n'
PROMPT = '[prompt]\ntemplate = "Text: {text}\\nGood?"\n'
LABELS = '[labels]\ncolumn = "label"\nwords = { 0 = "no", 1 = "yes" }\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "rows.csv").write_text('text,label,a,b\n"one, two",0,x,y\n"three\nfour",1,x,z\n')
    (tmp_path / "bad.csv").write_text("text,label\none,0\ntwo\n")
    (tmp_path / "rows.tsv").write_text("text\tlabel\none \t0\n two\t1\n")
    (tmp_path / "lines.txt").write_text("one document\n\nanother\n")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "twice.csv").write_text("text,label,label\none,0,1\n")
    (tmp_path / "gap.csv").write_text("text,label,a,b\none,1,,y\n")
    (tmp_path / "gaps.csv").write_text("text,label\none,1\ntwo,\n")
    (tmp_path / "latin.csv").write_bytes("caf\xe9,label\n".encode("latin-1"))
    return tmp_path


def task(folder: Path, text: str) -> Task:
    (folder / "my.toml").write_text(text)
    return load(folder / "my.toml").task


def sets(folder: Path, text: str) -> tuple[LabelledSet, ...]:
    made = task(folder, text)
    return read(made, form_of(made, aligned=True, masked=False), None)


def test_one_file_is_split_by_its_seed(folder: Path) -> None:
    train, dev, test = sets(folder, DATA + PROMPT + LABELS)
    order = np.random.RandomState(0).permutation(10).tolist()
    prompts = [[example.prompt for example in source.examples] for source in (test, dev, train)]
    assert prompts == [[f"Text: row {n}\nGood?" for n in rows] for rows in (order[:3], order[3:5], order[5:])]
    assert test.examples[0] == Example(f"Text: row {order[0]}\nGood?", (" no", " yes"), order[0] % 2)
    assert [source.name for source in (train, dev, test)] == [
        f"rows.jsonl ({name})" for name in ("train", "dev", "test")
    ]


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_files_of_each_set_in_each_format(suffix: str, folder: Path) -> None:
    if suffix == "parquet":
        datasets = pytest.importorskip("datasets")
        rows = [{"text": "one", "label": 0}, {"text": "two", "label": 1}]
        datasets.Dataset.from_list(rows).to_parquet(folder / "rows.parquet")
    train, test = sets(folder, f'[data]\ntrain = "rows.{suffix}"\ntest = "rows.{suffix}"\n{PROMPT}{LABELS}')
    assert train.examples == test.examples
    assert [example.answer for example in train.examples] == [0, 1]
    texts = ["one, two", "three\nfour"] if suffix == "csv" else ["one", "two"]
    assert [example.prompt for example in train.examples] == [f"Text: {text}\nGood?" for text in texts]
    if suffix == "tsv":  # whose spaces at the ends of a column are left out: another task than with them in the prompt
        assert load(folder / "my.toml").identity == "my@707644a4cc13"


def test_a_dataset_of_datasets_in_a_folder(folder: Path) -> None:
    pytest.importorskip("datasets")
    for name in ("train", "validation"):
        written(folder / "hub" / f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in ROWS[:4]))
    data = '[data]\nhub = "hub"\ntrain = "train"\ntest = "validation"\n'
    train, test = sets(folder, data + PROMPT + LABELS)
    assert [len(train.examples), len(test.examples)] == [4, 4]
    assert train.name == "hub train"


def test_candidates_in_several_columns_or_a_list_and_several_right_ones(folder: Path) -> None:
    data = '[data]\ntrain = "rows.csv"\ntest = "rows.csv"\n[prompt]\ntemplate = "{{{text}}}"\n'
    (train, _) = sets(folder, data + '[candidates]\ncolumns = ["a", "b"]\nanswer = "label"\n')
    assert train.examples == [
        Example("{one, two}", (" x", " y"), 0, (0,)), Example("{three\nfour}", (" x", " z"), 1, (1,))
    ]  # fmt: skip
    (folder / "several.jsonl").write_text('{"text": "t\\n", "names": ["A", "B", "C"], "right": ["C", "A"]}\n')
    data = '[data]\ntrain = "several.jsonl"\ntest = "several.jsonl"\n[prompt]\ntemplate = "{text}"\n'
    (train, _) = sets(folder, data + '[candidates]\ncolumn = "names"\nanswer = "right"\n')
    assert train.examples == [Example("t\n", ("A", "B", "C"), 2, (2, 0))]


def test_a_free_answer_may_be_one_of_several_inside_a_column(folder: Path) -> None:
    made = task(folder, DATA + PROMPT + '[answer]\ncolumn = "answers.text"\nmax_new_tokens = 7\n')
    example = read(made, made.form, None)[2].examples[0]
    number = int(np.random.RandomState(0).permutation(10)[0])
    assert example == Example(f"Text: row {number}\nGood?", (f" {number}\n",), 0, golds=(f"{number}", "x"))
    assert (made.goal.new_tokens, made.goal.stop, made.loss, made.goal.scores) == (7, "\n", "lm", ("f1", "exact_match"))


def test_a_text_is_one_document_per_line(folder: Path) -> None:
    (train, _) = sets(folder, '[data]\ntrain = "lines.txt"\ntest = "lines.txt"\n[text]\n')
    assert [example.prompt for example in train.examples] == ["one document", "another"]


def test_a_byte_order_mark_is_no_part_of_a_text_and_a_field_may_be_long(folder: Path) -> None:
    mark, row = "\ufeff", '{"text": "one", "label": 0}'
    (folder / "mark.txt").write_text(mark + "one\n")
    (train, _) = sets(folder, '[data]\ntrain = "mark.txt"\ntest = "mark.txt"\n[text]\n')
    assert train.examples[0].prompt == "one"
    (folder / "long.csv").write_text(f"{mark}text,label\n{'x' * 200_000},0\n")
    for file, given in (("mark.jsonl", ""), ("mark.json", 'format = "jsonl"\n'), ("mark.tsv", 'format = "jsonl"\n')):
        (folder / file).write_text(f"{mark}{row}\n{row}\n")
        data = f'[data]\n{given}train = "{file}"\ntest = "{file}"\n' + PROMPT + LABELS
        assert [example.prompt for example in sets(folder, data)[0].examples] == ["Text: one\nGood?"] * 2
    (train, _) = sets(folder, '[data]\ntrain = "long.csv"\ntest = "long.csv"\n' + PROMPT + LABELS)
    assert len(train.examples[0].prompt) > 200_000


def test_a_file_that_is_read_in_another_format_is_another_task(folder: Path) -> None:
    data = '[data]\ntrain = "rows.csv"\ntest = "rows.csv"\n'
    named = [data, data + 'format = "csv"\n', data + 'format = "text"\n']
    names = []
    for text in named:
        (folder / "my.toml").write_text(text + '[text]\ncolumn = "text"\n')
        names.append(load(folder / "my.toml").identity)
    assert names[0] == names[1] != names[2]


MISTAKES: dict[str, tuple[str, str]] = {
    "a column of the template": (
        DATA + '[prompt]\ntemplate = "{sentence}"\n' + LABELS,
        "`prompt.template` must name columns of the data, but got 'sentence'; use one of text, label, tags, answers",
    ),
    "a brace": (DATA + '[prompt]\ntemplate = "{text"\n' + LABELS, "`prompt.template` must be text with {columns}, but"),
    "no column": (DATA + '[prompt]\ntemplate = "It was"\n' + LABELS, "`prompt.template` must name a column, but names"),
    "two asks": (DATA + PROMPT + LABELS + "[text]\n", "one of labels, candidates, answer, text must say what is right, "
                 "but got labels and text"),
    "a section": (DATA + PROMPT + "[lables]\n", "unknown key 'lables' in the file; did you mean labels?"),
    "a label": (DATA + PROMPT + '[labels]\ncolumn = "label"\nwords = { 0 = "no", 2 = "yes" }\n',
                "{folder}/rows.jsonl:2: `label` must be one of 0, 2, but got '1'; add it to labels.words"),
    "no label": ('[data]\ntrain = "rows.csv"\ntest = "gaps.csv"\n' + PROMPT + LABELS,
                 "{folder}/gaps.csv:3: `label` must be one of 0, 1, but got ''; leave the row out, or fill it in"),
    "a candidate": (
        DATA + PROMPT + '[candidates]\ncolumn = "tags"\nanswer = "text"\n',
        "{folder}/rows.jsonl:1: `text` must be the text of a candidate, or its number from 0 to 1, but got 'row 0'",
    ),
    "a whole": (DATA.replace("0.3", "9") + PROMPT + LABELS, "`data.split` must leave rows to train on, but takes 11 o"),
    "no file": ('[data]\ntrain = "no.csv"\ntest = "rows.csv"\n' + PROMPT + LABELS, "`data.train` must be a file, but"),
    "an empty file": ('[data]\ntrain = "empty.jsonl"\ntest = "rows.csv"\n' + PROMPT + LABELS,
                      "empty.jsonl must hold rows, but is empty; give a whole set"),
    "a line of CSV": ('[data]\ntrain = "bad.csv"\ntest = "rows.csv"\n' + PROMPT + LABELS,
                      "{folder}/bad.csv:3: a line must have the header's 2 fields; repair it"),
    "one word": (DATA + PROMPT + LABELS.replace('"no"', '"yes"'),
                 "`labels.words` must tell the labels apart, but got {'0': 'yes', '1': 'yes'}; give each another word"),
    "a column twice": ('[data]\ntrain = "twice.csv"\ntest = "rows.csv"\n' + PROMPT + LABELS,
                       "{folder}/twice.csv:1: a header must name each column once, but has 'label' twice; rename one"),
    "an empty candidate": (
        '[data]\ntrain = "gap.csv"\ntest = "rows.csv"\n' + PROMPT
        + '[candidates]\ncolumns = ["a", "b"]\nanswer = "label"\n',
        "{folder}/gap.csv:2: a candidate must be a text, but got ['', 'y']; leave empty ones out",
    ),
    "an encoding": (
        '[data]\ntrain = "latin.csv"\ntest = "rows.csv"\n' + PROMPT + LABELS,
        "{folder}/latin.csv: a data file must be UTF-8, but 'utf-8' codec can't decode byte 0xe9 in position 3: inval",
    ),
    "TOML": ("[data\n", "it must be TOML, but is not: Expected ']' at the end of a table declaration"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_that_names_the_file(mistake: str, folder: Path) -> None:
    text, message = MISTAKES[mistake]
    (folder / "my.toml").write_text(text)
    with pytest.raises(ValueError) as error:  # noqa: PT011
        RunSpec(model="opt-tiny", task=str(folder / "my.toml"))
    line = str(error.value)
    assert line.startswith("my.toml: " + message.replace("{folder}", str(folder))), line
    assert "\n" not in line


def test_a_row_of_another_form_is_one_line(tmp_path: Path) -> None:
    for file in ("train.jsonl", "val.jsonl"):
        (tmp_path / file).write_text('{"title": "t", "paragraphs": 3}')
    message = "train.jsonl:1: a row must have text in the columns title, context, .*; give rows as the hub has them"
    with pytest.raises(ValueError, match=message):
        read(TASKS.get("squad"), TASKS.get("squad").form, tmp_path)


# ---- a first task file


def test_a_first_task_file_guesses_columns_and_lists_labels(folder: Path) -> None:
    rows = [f'{n},"a ""fine"" film, {n}",a dull plot,box,{"yes" if n % 2 else "not so"}' for n in range(12)]
    (folder / "my pairs.csv").write_text("\n".join(["id,first,second,from,Label", *rows]) + "\n")
    path, guessed = draft.write(folder / "my pairs.csv")
    assert guessed == "12 rows; labels in Label (not so, yes), text in first and second"
    written = load(path).task
    (train, dev, test) = read(written, form_of(written, aligned=True, masked=False), None)
    assert written.name == "my-pairs"
    assert [len(part.examples) for part in (train, dev, test)] == [10, 1, 1]
    (example,) = test.examples
    n = np.random.RandomState(0).permutation(12)[0]
    assert example.prompt == f'First: a "fine" film, {n}\nSecond: a dull plot\nLabel:'
    assert (example.candidates, example.answer) == ((" not so", " yes"), n % 2)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("none.csv", None, "`FILE` must be there, but "),
        ("unnamed.csv", ",label\n0,x\n1,y\n2,x\n3,y\n",
         "must have a column of text and one of 2 to 20 labels, but has "),
        ("semicolons.csv", "text;label\na b;0\nc d;1\n", "but has text;label; separate its columns by commas"),
    ],
)  # fmt: skip
def test_rows_of_which_no_task_file_is_made_are_one_line(
    folder: Path, name: str, text: str | None, message: str
) -> None:
    if text is not None:
        (folder / name).write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        draft.write(folder / name)
    assert "\n" not in str(raised.value)
    assert not (folder / name).with_suffix(".toml").exists()
