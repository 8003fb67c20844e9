"""Labelled examples of a task, from the files in a folder or from the hub; every malformed row is named."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zobench.data.tasks.task import Example, Form, Task
from zobench.machine.texts import first_line

REVISIONS = {
    "nyu-mll/glue": "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c",
    "aps/super_glue": "3de24cf8022e94f4ee4b9d55a6f539891524d646",
    "allenai/winogrande": "01e74176c63542e6b0bcb004dcdea22d94fb67b5",
    "rajpurkar/squad": "7b6d24c440a36b6815f21b70d25016731768db1f",
    "ucinlp/drop": "95cda593fae71b60b5b19f82de3fcf3298c1239c",
}
"""The commit of each dataset on the hub that a run reads: there all five are Parquet files without a script."""
COMMIT = 40
"""Digits of a full commit."""
PARTS = ("train", "validation")


@dataclass(frozen=True, kw_only=True, slots=True)
class SetFiles:
    """Where a task's sets are: ``folder``, and the names of its files there, first present wins; or on the hub
    (``hub``: the dataset, empty where there is none; ``config``: its configuration, in the hub's files a folder).

    A folder may also hold the hub's own Parquet files (``train-00000-of-00001.parquet``) in place of the named ones.
    """

    folder: str
    train: tuple[str, ...] = ("train.jsonl",)
    validation: tuple[str, ...] = ("val.jsonl",)
    hub: str = "aps/super_glue"
    config: str = ""

    def __call__(self, name: str, part: str, data_dir: Path | None) -> tuple[str, Iterator[tuple[str, Any]]]:
        """The set ``part`` of task ``name``: ``data_dir`` holds its folder, or is that folder; None: from the hub."""
        if data_dir is None and not self.hub:
            raise ValueError(f"`--data-dir` must be given, since {name} is not on the hub, but is not; name its folder")
        if data_dir is None:
            origin = f"{self.hub} {self.config} {part} ({REVISIONS[self.hub][:12]})"
            remedy = "give its files by --data-dir or ZOBENCH_DATA_DIR"
            return origin, load(origin, remedy, self.hub, self.config, revision=REVISIONS[self.hub], split=part)
        paths = dict(zip(PARTS, _find(name, self, data_dir), strict=True))[part]
        if paths[0].suffix != ".parquet":
            return str(paths[0]), lines_of(paths[0])
        return str(paths[0]), parquet(paths)


@dataclass(frozen=True, slots=True)
class LabelledSet:
    """The labelled examples of one set, in their order; ``where``: its file, or its name on the hub;
    ``places``: of each example the file and line, or the row."""

    where: str
    examples: list[Example]
    places: list[str]

    @property
    def name(self) -> str:
        """``where`` without the folders of this machine: ``SST-2/train.tsv``, or the name on the hub."""
        path = Path(self.where)
        return "/".join(path.parts[-2:]) if path.is_file() else self.where


def read(task: Task, form: Form, data_dir: Path | None) -> tuple[LabelledSet, ...]:
    """The sets of ``task`` in the order of its parts, the training set first, from ``data_dir`` (None: from the hub).

    For the papers' tasks ``data_dir`` holds the task's folder (``SST-2``, ``RTE``, ...) or is that folder. Raises
    ``ValueError`` for an absent or empty file, a malformed line, a missing column or an unknown label.
    """
    sets = [task.rows(task.name, part, data_dir) for part in task.parts]  # all must be there before one is read
    return tuple(_source(task, form, *found_set) for found_set in sets)


def _source(task: Task, form: Form, origin: str, records: Iterable[tuple[str, Any]]) -> LabelledSet:
    examples: list[Example] = []
    places: list[str] = []
    for row_place, record in records:
        try:
            if not isinstance(record, Mapping):
                raise ValueError(f"a row must be an object with columns, but got {type(record).__name__}")
            examples += [task.example(row, form) for row in (task.flat or _rows)(record)]
            places += [row_place] * (len(examples) - len(places))
        except ValueError as error:
            remedy = task.remedy or f"give {task.name}'s files as they are published"
            raise ValueError(f"{row_place}: {error}; {remedy}") from error
    if not examples:
        raise ValueError(f"{origin}: a set must hold examples, but got none; give a whole set of {task.name}")
    return LabelledSet(origin, examples, places)


def _rows(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The flat rows of one record, as the hub has them: SuperGLUE's own files nest WSC's spans, and all questions and
    answers of a MultiRC passage."""
    target, passage = record.get("target"), record.get("passage")
    if isinstance(target, Mapping):
        return [{**record, **target}]
    if not isinstance(passage, Mapping):
        return [dict(record)]
    try:
        return [
            {
                "paragraph": passage["text"],
                "question": question["question"],
                "answer": answer["text"],
                **({"label": answer["label"]} if "label" in answer else {}),
            }
            for question in passage["questions"]
            for answer in question["answers"]
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"nested columns must be MultiRC's own, but got {type(error).__name__} {error}") from error


def _find(name: str, files: SetFiles, data_dir: Path) -> tuple[list[Path], list[Path]]:
    """Paths of the training and of the validation files, all of the first folder that has a training file."""
    if not data_dir.is_dir():
        raise ValueError(f"`--data-dir` must be a folder, but got {data_dir}; leave it out to load {name} from the hub")
    for folder in (data_dir / files.folder, data_dir / files.config, data_dir):
        if not (train := _present(folder, (*files.train, "train-*.parquet"))):
            continue
        if validation := _present(folder, (*files.validation, "validation-*.parquet")):
            return train, validation
        wanted = " or ".join(files.validation)
        raise ValueError(f"{folder} must hold the validation set of {name}, but has no {wanted}; put it there")
    wanted = " or ".join(files.train)
    raise ValueError(
        f"{data_dir} must hold the training set of {name}, but has no {wanted}, neither there nor in {files.folder}; "
        "leave --data-dir and ZOBENCH_DATA_DIR out to load it from the hub"
    )


def _present(folder: Path, names: tuple[str, ...]) -> list[Path]:
    """The files of ``folder`` with the first of the ``names`` that any has; a name may be a pattern."""
    return next((files for name in names if (files := sorted(folder.glob(name)))), [])


def lines_of(path: Path, suffix: str = "") -> Iterator[tuple[str, Any]]:
    """(file:line, record) of a TSV file with a header, of JSON lines, or of one JSON text, as ``suffix`` or else the
    path's own says."""
    parse = {".tsv": _tsv, ".json": _json}.get(suffix or path.suffix, _jsonl)
    with path.open(encoding="utf-8-sig", newline="\n") as lines:
        try:
            yield from parse(path, (line.rstrip("\r\n") for line in lines))
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: a data file must be UTF-8, but {error}; convert it") from error


def _jsonl(path: Path, lines: Iterable[str]) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(lines, start=1):
        try:
            yield f"{path}:{number}", json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{number}: a line must be one JSON object, but {error}; repair it") from error


def _json(path: Path, lines: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """A list of records."""
    try:
        body = json.loads("\n".join(lines))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: a file must be one JSON text, but {error}; repair it") from error
    if not isinstance(body, list):
        raise ValueError(f"{path}: a file must be a list of records, but got {type(body).__name__}; repair it")
    return ((f"{path}:{number}", record) for number, record in enumerate(body, start=1))


def _tsv(path: Path, lines: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """GLUE's files quote nothing: a tab always ends a field."""
    header: list[str] = []
    for number, line in enumerate(lines, start=1):
        fields = line.split("\t")
        if number == 1:
            header = fields
        elif len(fields) != len(header):
            raise ValueError(
                f"{path}:{number}: a line must have the header's {len(header)} fields, but got {len(fields)}; repair it"
            )
        else:
            yield f"{path}:{number}", dict(zip(header, fields, strict=True))


def parquet(paths: Sequence[Path]) -> Iterator[tuple[str, Any]]:
    """(file and row, record) of Parquet files, which are read through ``datasets``."""
    for path in paths:
        remedy = "give the file as it was published"
        yield from load(str(path), remedy, "parquet", data_files={"train": str(path)}, split="train")


def load(origin: str, remedy: str, *name: str | None, **options: Any) -> Iterator[tuple[str, Any]]:
    """(``origin`` and row, record) of what ``datasets.load_dataset(*name, **options)`` gives; it is called at once.

    Raises ``ValueError``, ended by ``remedy``, for what does not load and where a full commit was asked for and
    ``datasets``, offline, gives the latest it has in its cache; ``ImportError`` without ``datasets``.
    """
    try:
        import datasets
    except ImportError as error:
        raise ImportError(
            "rows of the hub and of Parquet need the package datasets, which is missing; pip install 'zobench[tasks]' "
            "or give a task's text files by --data-dir (or ZOBENCH_DATA_DIR)"
        ) from error
    try:
        rows = datasets.load_dataset(*name, **options)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise ValueError(f"{origin} must load, but {first_line(error)}; {remedy}") from error
    commit = options.get("revision") or ""
    cached = {Path(file["filename"]).parent.name for file in rows.cache_files}
    if len(commit) == COMMIT and cached - {commit}:
        raise ValueError(
            f"{origin} must be of this commit, but offline the cache's latest is {min(cached - {commit})[:12]}; "
            f"{remedy}"
        )
    return ((f"{origin} row {number}", row) for number, row in enumerate(rows, start=1))
