"""The Chrome trace of a step: every operation of the timeline, in microseconds, on a named lane."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

from tests.support.stores import MACHINE, run, specs
from zobench.result import Result, Round
from zobench.store import Store, query
from zobench.store.trace import trace

RESIDENT, OFFLOADED = (
    next(run(spec) for spec in specs() if spec.engine == engine) for engine in ("resident", "offload")
)
ROWS: list[list[Any]] = [
    ["offload", "offload", 2, 0.25, 0.5],
    ["upload", "upload", 0, 0.5, 1],
    ["spare", 'a"</script>\n', 1, 1.0, 1.0],
    ["compute", "update", 0, 1.0, 1.75],
]


def of(rows: list[list[Any]]) -> dict[str, Any]:
    """What a viewer reads."""
    values = OFFLOADED.to_dict() | {"timeline": rows}
    parsed: dict[str, Any] = json.loads(json.dumps(trace(Result.from_dict(values)), allow_nan=False))
    return parsed


def events(trace_json: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in trace_json["traceEvents"] if event["ph"] == phase]


def test_every_row_of_the_timeline_is_a_complete_event_on_its_lane() -> None:
    trace_json = of(ROWS)
    assert len({event["pid"] for event in trace_json["traceEvents"]}) == 1
    assert trace_json["displayTimeUnit"] in ("ms", "ns")
    names = {event["tid"]: event["args"]["name"] for event in events(trace_json, "M") if event["name"] == "thread_name"}
    rows = [
        [names[event["tid"]], event["args"]["kind"], event["args"]["block"], event["ts"] / 1e6,
         (event["ts"] + event["dur"]) / 1e6]
        for event in events(trace_json, "X")
    ]  # fmt: skip
    assert rows == ROWS


def test_lanes_stand_in_the_order_of_the_papers_figures() -> None:
    ordered = {
        event["tid"]: event["args"]["sort_index"]
        for event in events(of(ROWS), "M")
        if event["name"] == "thread_sort_index"
    }
    names = {event["args"]["name"]: event["tid"] for event in events(of(ROWS), "M") if event["name"] == "thread_name"}
    assert sorted(names, key=lambda name: ordered[names[name]]) == ["upload", "compute", "offload", "spare"]


def test_the_trace_says_which_run_it_is() -> None:
    about = of(ROWS)["otherData"]
    assert about["run"] == OFFLOADED.spec.hash
    assert (about["cell"], about["machine"], about["outcome"]) == (OFFLOADED.spec.label, MACHINE, "ok")
    assert about["step_seconds"] == OFFLOADED.samples["step_seconds"][-1]


def test_a_file_and_the_first_digits_of_a_hash_name_a_run(tmp_path: Path, zobench: Any) -> None:
    path = Store(tmp_path / "results").save(OFFLOADED)
    written = tmp_path / "step.json"
    answers = [
        zobench("trace", str(path)),
        zobench("trace", OFFLOADED.spec.hash[:5], "--results", str(tmp_path / "results")),
    ]
    assert zobench("trace", str(path), "--out", str(written)) == (0, "", "")
    for code, out, err in answers:
        assert (code, json.loads(out), err) == (0, trace(OFFLOADED), "")
    assert json.loads(written.read_text()) == trace(OFFLOADED)


def test_a_cell_of_later_rounds_is_found_by_its_hash(tmp_path: Path) -> None:
    rounds = [Round(number=number, began=float(number), place=0, cells=1, seed=0) for number in (4, 10, 3)]
    for cell_run in rounds:
        Store(tmp_path).save(dataclasses.replace(OFFLOADED, round=cell_run))
    assert query.named_run(OFFLOADED.spec.hash[:6], tmp_path).round == rounds[2]


def test_a_run_that_cannot_be_told_is_one_line(tmp_path: Path, refused: Any) -> None:
    store = Store(tmp_path)
    paths = [store.save(run(spec)) for spec in itertools.islice(specs(), 3)]
    copies = [store.save(run(OFFLOADED.spec)), store.save(run(OFFLOADED.spec).with_facts(machine="other"))]
    torn = paths[0]
    torn.write_text("{")
    said = {
        "0000": "'0000' must name a run, but got none: no run in ",
        "a" * 5000: "RUN must be a result file or 4 to 12 digits of a run's hash, but got 'aaa",
        "12": "RUN must be a result file or 4 to 12 digits of a run's hash, but got '12'; see `zobench results`",
        OFFLOADED.spec.hash: f"'{OFFLOADED.spec.hash}' must name one run, but got {copies[0]}, {copies[1]}; name the f",
        torn.stem.rpartition("-")[
            2
        ]: f"'{torn.stem.rpartition('-')[2]}' must name a run, but got none: {torn}: a result must be whole JSON, but",
    }
    for word, text in said.items():
        assert refused("trace", word, "--results", str(tmp_path)).startswith(f"zobench: {text}")
