"""Readers of tasks: known sizes and label balance of the real data, folders, the hub, and malformed files."""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.files import written
from tests.support.task_data import sets
from zobench.data.tasks.read import REVISIONS
from zobench.runspec.registries import TASKS

KNOWN = {
    # task: examples by answer, in the order of the candidates: of the training set, of the validation set
    "sst2": ([29780, 37569], [428, 444]),
    "rte": ([1249, 1241], [146, 131]),
    "cb": ([115, 119, 16], [23, 28, 5]),
    "boolq": ([624, 376], [2033, 1237]),
    "wsc": ([295, 259], [66, 38]),
    "wic": ([2714, 2714], [319, 319]),
    "multirc": ([15218, 12025], [2773, 2075]),
    "copa": ([195, 205], [55, 45]),
    "winogrande": ([1279, 1279], [628, 639]),
}


@pytest.mark.parametrize("name", KNOWN)
def test_sizes_and_label_balance_are_the_known_ones(real_data: Path, name: str) -> None:
    parts = sets(name, real_data)
    for source, known in zip(parts, KNOWN[name], strict=True):
        counts = Counter(example.answer for example in source.examples)
        assert [counts[answer] for answer in range(len(known))] == known
        assert len(source.examples) == sum(known)
        assert all(len(example.candidates) == len(TASKS.get(name).names) for example in source.examples)


def lines(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def rte(folder: Path, train: str, validation: str | None = None) -> None:
    good = lines({"premise": "p", "hypothesis": "h", "label": "entailment"})
    written(folder / "train.jsonl", train)
    written(folder / "val.jsonl", good if validation is None else validation)


def test_fields_end_at_tabs_and_lines_at_newlines_only(tmp_path: Path) -> None:
    written(tmp_path / "train.tsv", 'sentence\tlabel\r\na "quoted\t1\r\nb\u2028c\x85d\re\t0\r\n')
    written(tmp_path / "dev.tsv", "label\tsentence\n1\tx")
    train, validation = sets("sst2", tmp_path)
    assert [(e.prompt, e.answer) for e in train.examples] == [('a "quoted It was', 1), ("b\u2028c\x85d\re It was", 0)]
    assert [(e.prompt, e.answer) for e in validation.examples] == [("x It was", 1)]


def nothing(folder: Path) -> None: ...


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (nothing, "{} must hold the training set of rte, but has no train.jsonl, neither there nor in RTE; leave "
         "--data-dir and ZOBENCH_DATA_DIR out to load it from the hub"),
        (lambda folder: written(folder / "RTE" / "train.jsonl", "{}"),
         "{}/RTE must hold the validation set of rte, but has no val.jsonl; put it there"),
        (lambda folder: rte(folder, ""), "{}/train.jsonl: a set must hold examples, but got none; give a whole set"),
        (lambda folder: rte(folder, lines({"premise": "p", "hypothesis": "h", "label": 0}) + '{"premise": '),
         "{}/train.jsonl:2: a line must be one JSON object, but Expecting value: line 1 column 13 (char 12); repair"),
        (lambda folder: rte(folder, lines({"premise": "p", "hypothesis": "h", "label": 0}), lines({"premise": "p"})),
         "{}/val.jsonl:1: a row must have text in"),
        (lambda folder: (rte(folder, ""), (folder / "train.jsonl").write_bytes(b'{"premise": "caf\xe9"}\n')),
         "{}/train.jsonl: a data file must be UTF-8, but 'utf-8' codec can't decode byte 0xe9 in position "),
        (lambda folder: rte(folder, lines({"premise": "p", "hypothesis": "h", "label": "maybe"})),
         "{}/train.jsonl:1: `label` must be one of 'entailment', 'not_entailment', 0, 1, but got 'maybe'"),
    ],
)  # fmt: skip
def test_missing_and_malformed_json_lines(tmp_path: Path, make: Callable[[Path], None], text: str) -> None:
    make(tmp_path)
    with pytest.raises(ValueError, match=r"\A.*\Z") as error:  # one line
        sets("rte", tmp_path)
    assert str(error.value).startswith(text.format(tmp_path))
    assert re.search(r"; (leave|put|give|repair|convert) ", str(error.value))  # a remedy


@pytest.mark.parametrize(
    ("train", "text"),
    [
        ("", ": a set must hold examples, but got none"),
        ("sentence\tlabel\na\t1\nb\n", ":3: a line must have the header's 2 fields, but got 1; repair it"),
        ("sentence\tlabel\na\tgood\n", ":2: `label` must be one of 0, 1, '0', '1', but got 'good'"),
    ],
)
def test_missing_and_malformed_tab_separated_lines(tmp_path: Path, train: str, text: str) -> None:
    path = written(tmp_path / "SST-2" / "train.tsv", train)
    written(tmp_path / "SST-2" / "dev.tsv", "sentence\tlabel\na\t1\n")
    with pytest.raises(ValueError, match=r"\A.*\Z") as error:
        sets("sst2", tmp_path)
    assert str(error.value).startswith(str(path) + text)
    assert re.search(
        r"; (give a whole set of sst2|give sst2's files as they are published|repair it)$", str(error.value)
    )


def test_a_data_dir_that_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`--data-dir` must be a folder, but got .*absent; leave it out to load rte"):
        sets("rte", tmp_path / "absent")


HUB_ROWS: dict[str, dict[str, Any]] = {
    "sst2": {"sentence": "fine ", "label": 1, "idx": 0},
    "rte": {"premise": "p.", "hypothesis": "h", "idx": 0, "label": 1},
    "cb": {"premise": "p.", "hypothesis": "h", "idx": 0, "label": 1},
    "boolq": {"question": "is it", "passage": "p.", "idx": 0, "label": 0},
    "wsc": {"text": "t", "span1_index": 0, "span2_index": 1, "span1_text": "A", "span2_text": "He", "idx": 0,
            "label": 1},
    "wic": {"word": "w", "sentence1": "a", "sentence2": "b", "start1": 0, "start2": 0, "end1": 1, "end2": 1, "idx": 0,
            "label": 1},
    "multirc": {"paragraph": "p", "question": "q", "answer": "a", "idx": {"paragraph": 0, "question": 0, "answer": 0},
                "label": 1},
    "copa": {"premise": "p.", "choice1": "A", "choice2": "B", "question": "cause", "idx": 0, "label": 1},
    "winogrande": {"sentence": "a _ b", "option1": "A", "option2": "B", "answer": "2"},
    "squad": {"id": "0", "title": "t", "context": "c", "question": "q?", 
              "answers": {"text": ["a"], "answer_start": [0]}},
    "drop": {"section_id": "s", "query_id": "0", "passage": "p", "question": "q?",
             "answers_spans": {"spans": ["2", "two"], "types": ["number", "number"]}},
    "record": {"passage": "p", "query": "@placeholder won", "entities": ["A", "B"], "answers": ["B"],
               "idx": {"passage": 0, "query": 0}},
}  # fmt: skip
HUB = {
    "sst2": ("nyu-mll/glue", "sst2"), "rte": ("aps/super_glue", "rte"), "cb": ("aps/super_glue", "cb"),
    "boolq": ("aps/super_glue", "boolq"), "wsc": ("aps/super_glue", "wsc.fixed"), "wic": ("aps/super_glue", "wic"),
    "multirc": ("aps/super_glue", "multirc"), "copa": ("aps/super_glue", "copa"),
    "winogrande": ("allenai/winogrande", "winogrande_xl"), "squad": ("rajpurkar/squad", "plain_text"),
    "drop": ("ucinlp/drop", "default"), "record": ("aps/super_glue", "record"),
}  # fmt: skip


def hub_files(name: str, folder: Path) -> Path:
    """The Parquet files of a task's configuration as its dataset has them on the hub: 3 rows and 2."""
    datasets = pytest.importorskip("datasets")
    folder.mkdir(parents=True)
    for part, count in (("train", 3), ("validation", 2)):
        rows = datasets.Dataset.from_list([HUB_ROWS[name]] * count)
        rows.to_parquet(folder / f"{part}-00000-of-00001.parquet")
    return folder


@pytest.mark.parametrize("name", TASKS.names())
def test_the_hub_is_asked_by_name_at_a_full_commit_and_local_files_are_as_good(tmp_path, monkeypatch, name) -> None:
    """A fake hands out local files for the hub's call; then the same files are given by --data-dir."""
    datasets = pytest.importorskip("datasets")
    repository, config = HUB[name]
    files, real, asked = hub_files(name, tmp_path / config), datasets.load_dataset, []

    def local(*names: str, revision: str, split: str) -> Any:
        asked.append((*names, revision, split))
        return real(str(files), split=split, cache_dir=str(tmp_path / "cache" / revision))

    with monkeypatch.context() as patch:
        patch.setattr(datasets, "load_dataset", local)
        patch.setattr(datasets.arrow_dataset.Dataset, "cache_files", [])  # a local folder's hash is no commit
        train, validation = sets(name, None)
    revision = REVISIONS[repository]
    assert asked == [(repository, config, revision, part) for part in ("train", "validation")]
    assert re.fullmatch("[0-9a-f]{40}", revision)
    assert (len(train.examples), len(validation.examples)) == (3, 2)
    assert train.where == f"{repository} {config} train ({revision[:12]})"
    assert train.examples == [TASKS.get(name).example(HUB_ROWS[name], TASKS.get(name).form)] * 3
    assert train.examples[0].answer == int(not train.examples[0].golds)  # a free answer is the one that there is
    for folder in (tmp_path, files):  # a copy of the dataset, and of the configuration's folder alone
        given = sets(name, folder)
        assert [source.examples for source in given] == [train.examples, validation.examples]
        assert given[0].where == str(files / "train-00000-of-00001.parquet")


@pytest.mark.parametrize("commit", [REVISIONS["nyu-mll/glue"], "0" * 40])
def test_offline_the_cache_of_datasets_serves_the_pinned_commit_only(tmp_path, monkeypatch, commit) -> None:
    """``datasets`` itself, offline, takes the latest commit in its cache, whichever is asked for."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    files = hub_files("sst2", tmp_path / "glue")
    made = Path(datasets.load_dataset(str(files))["train"].cache_files[0]["filename"]).parent
    kept = tmp_path / "cache" / "nyu-mll___glue" / "sst2" / "0.0.0" / commit
    kept.mkdir(parents=True)
    for file in made.glob("*"):
        text = file.read_bytes().replace(b'"config_name": "default"', b'"config_name": "sst2"')
        (kept / file.name.replace("parquet-", "glue-")).write_bytes(text)
    if commit == REVISIONS["nyu-mll/glue"]:
        assert [len(source.examples) for source in sets("sst2", None)] == [3, 2]
        return
    message = r"nyu-mll/glue sst2 train .* this commit, but .* latest is 000000000000; give"
    with pytest.raises(ValueError, match=message):
        sets("sst2", None)


def test_the_page_has_every_task_with_its_commit() -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\S+/\S+)` \| .* \| `([0-9a-f]{40})` \|$", page, re.MULTILINE))
    tasks = {
        name for names in re.findall(r"^\| `\S+/\S+` \| (.*) \| `", page, re.MULTILINE) for name in names.split(", ")
    }
    assert rows == REVISIONS
    assert tasks == set(HUB)


def test_a_hub_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach it\nat length")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    message = r"\Anyu-mll/glue .* but Couldn't reach it; give its files by --data-dir or Z.*\Z"
    with pytest.raises(ValueError, match=message):
        sets("sst2", None)
