"""What the campaign found stays mended: each was a traceback, a hang, several lines, or a file elsewhere."""

import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from tests.reliability.targets import LLAMA, samples
from tests.support.rates import CALIBRATION
from tests.support.submissions import submitted
from tests.support.tables import PAPER, TINY, table_from
from zobench.cost import Rates
from zobench.durable import journal, snapshot
from zobench.durable.snapshot import SnapshotStart, Writer
from zobench.execute import jobs, rates
from zobench.machine.texts import toml_of
from zobench.models import checkpoint, identity, inspection
from zobench.report.artifacts import load_file
from zobench.report.render import render
from zobench.result import Result
from zobench.runspec import RunSpec
from zobench.training import examine

LINES = "x\n| y |"
RATES = ("copy_bytes_per_second", "matmul_flops_per_second", "operators_per_second")


@contextmanager
def refusal(pattern: str) -> Iterator[None]:
    """Inside, a ``ValueError`` is raised whose text has the pattern and is one line."""
    with pytest.raises(ValueError, match=pattern) as error:
        yield
    assert len(str(error.value).strip().splitlines()) == 1


@pytest.mark.parametrize("head", [{}, 5, {"run": LINES, "base": "b"}, {"run": "r"}])
def test_a_journal_says_whose_it_is(tmp_path: Path, head: Any) -> None:
    text = json.dumps(head).encode()
    path = tmp_path / "journal.bin"
    path.write_bytes(journal.MAGIC + b"%08x %s\n" % (zlib.crc32(text), text))
    with refusal(r"must say whose run it is and on which base, but does not; take an"):
        journal.read(path)


def whole(folder: Path) -> Path:
    writer = Writer(folder, 3)
    writer.add("block 0", 0, torch.arange(64, dtype=torch.uint8))
    return writer.finish({"run": "r", "base": "b", "step": 3, "positions": {"block 0": [1, 1, 0]}})


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", LINES])
def test_a_snapshot_reads_nothing_outside_of_its_folder(tmp_path: Path, name: str) -> None:
    path = whole(tmp_path)
    state = snapshot.state(path)
    (shard,) = state["shards"].values()
    (tmp_path / "secret.safetensors").write_bytes(next(path.glob("*.safetensors")).read_bytes())
    snapshot.write_state(path, {**state, "shards": {name: shard}})
    with refusal("must name shards that lie in it, but names"):
        SnapshotStart(path)


def test_a_shard_that_is_no_safetensors_is_one_line_though_its_sum_is_right(tmp_path: Path) -> None:
    path = whole(tmp_path)
    shard = next(path.glob("*.safetensors"))
    shard.write_bytes(b"\xff" * 200)
    shard_facts = {"bytes": 200, "sum": snapshot.checksum(shard)}
    snapshot.write_state(path, {**snapshot.state(path), "shards": {shard.name: shard_facts}})
    with pytest.raises(ValueError, match="must be whole safetensors, but is damaged"):
        SnapshotStart(path)


@pytest.mark.parametrize("wrong", [0, -1, "fast", float("nan"), True])
@pytest.mark.parametrize(
    "place", [*RATES, "kernel_seconds", "touch_bytes_per_second", "between_ranks_bytes_per_second"]
)
def test_what_is_no_rate_is_not_computed_with(place: str, wrong: Any) -> None:
    calibration = json.loads(json.dumps(CALIBRATION))
    if place not in RATES and wrong == 0:
        assert Rates.of(calibration | {place: wrong}), "it was not measured"
        return
    if place not in ("matmul_flops_per_second", "operators_per_second"):
        calibration[place] = wrong
    elif place == "matmul_flops_per_second":
        calibration[place]["bf16"] = wrong
    else:
        calibration[place]["fp32"]["losses"] = wrong
    with pytest.raises(TypeError, match=r"a rate must be a number above 0|unsupported operand"):
        Rates.of(calibration)
    assert rates._usable(json.dumps(calibration)) is None


def test_a_result_with_rates_of_none_is_shown(tmp_path: Path) -> None:
    text = TINY.replace("M1", "OPT-125M").replace("M2", "OPT-350M").replace("seq_len = 100", "")
    tree = samples()[0].to_dict()
    for rates_of_run in ({}, {"copy_bytes_per_second": 0}, {"copy_bytes_per_second": "fast"}):
        tree["environment"] = {**tree["environment"], "calibration": rates_of_run}
        assert render(table_from(tmp_path, text), [Result.from_dict(tree)], "markdown", reference=PAPER)


@pytest.mark.parametrize("wrong", [{"began": None, "ended": 2.0}, {"outcome": 5}, {LINES: 1}])
def test_what_a_job_wrote_is_of_its_kinds(wrong: dict[str, Any], tmp_path: Path) -> None:
    made = submitted(tmp_path, 2)
    (made.folder / "0.json").write_text(json.dumps({"job": "1", "host": "n", "began": 1.0, **wrong}))
    with refusal("must be what a job wrote, but"):
        jobs.progress(made, 0)


@pytest.mark.parametrize("text", ["5", "[", '{"winner": {}}'])
def test_a_damaged_record_of_a_search_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / examine.RECORD).write_text(text)
    with pytest.raises(ValueError, match="must name the winner of a search, but is damaged"):
        examine.check_winner("r", tmp_path / "run")
    (tmp_path / examine.RECORD).write_text(json.dumps({"winner": {"run": LINES}}))
    with refusal("has looked for"):
        examine.check_winner("r", tmp_path / "run")


@pytest.mark.parametrize("offsets", [[0.5, 12], [0, 2**70], [-4, 12]])
def test_offsets_that_lie_nowhere_are_not_followed(tmp_path: Path, offsets: list[Any], monkeypatch: Any) -> None:
    monkeypatch.setenv("ZOBENCH_CACHE_DIR", str(tmp_path / "cache"))
    data = save({"a": torch.ones(3)})
    length = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + length])
    head["a"]["data_offsets"] = offsets
    text = json.dumps(head).encode()
    (tmp_path / identity.SINGLE).write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    assert len(identity.weights_hash(tmp_path)) == 12
    with pytest.raises(ValueError, match="must hold whole safetensors, but"):
        checkpoint.tensors(tmp_path)


def test_a_model_of_a_thousand_million_layers_is_not_built(tmp_path: Path) -> None:
    (tmp_path / identity.CONFIG).write_text(json.dumps({**LLAMA, "num_hidden_layers": 10**9}))
    with pytest.raises(ValueError, match="num_hidden_layers=1000000000 is more than 2000"):
        inspection.inspect(tmp_path)


def test_a_model_whose_matrices_are_empty_is_one_line(tmp_path: Path) -> None:
    (tmp_path / identity.CONFIG).write_text(json.dumps({**LLAMA, "intermediate_size": 0}))
    with refusal(r"mlp\.gate_proj\.weight has no rows"):
        inspection.inspect(tmp_path)


@pytest.mark.parametrize("kind", ["5", "{a = 1}"])
def test_a_figures_kind_that_is_no_text_is_one_line(tmp_path: Path, kind: str) -> None:
    (tmp_path / "mine.toml").write_text(f'kind = {kind}\ntitle = "x"\n')
    with refusal(r"^mine\.toml: "):
        load_file(tmp_path / "mine.toml")


def test_a_recipe_of_many_megabytes_is_not_parsed(tmp_path: Path) -> None:
    """tomllib took more than five seconds for one of seven."""
    (path := tmp_path / "x.toml").write_text("title = 'x'\n" + "x = [[],\n" * 200_000)
    with pytest.raises(ValueError, match="a TOML file must have at most 1,000,000 characters, but this has 1,800,012"):
        toml_of(path)


def test_a_stored_spec_of_another_kind_is_one_line() -> None:
    with refusal("a stored spec must be a table, but is "):
        RunSpec.from_stored([])  # type: ignore[arg-type]


def test_a_damaged_header_of_safetensors_is_one_line(tmp_path: Path) -> None:
    header = b'{"a\\n\\nb": {"dtype": "x\\n\\n# y", "shape": [1], "data_offsets": [0, 1]}}'
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"0")
    with refusal("must hold whole safetensors, but "):
        checkpoint.tensors(tmp_path)
