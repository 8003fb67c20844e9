"""The store: whole files or none, forgiving reads, floats that come back as they went in."""

import contextlib
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import stores
from tests.support.files import written
from zobench.result import Facts, Outcome, Result
from zobench.result.examples import KEY, packed, unpacked
from zobench.runspec import RunSpec
from zobench.store import Store, StoreError, files, frame, metrics
from zobench.store.sendable import sendable

MACHINE = "cpu-2c-4f2a91"


def result(model: str = "OPT-125M", machine: str = MACHINE, **changes: Any) -> Result:
    values: dict[str, Any] = {
        "spec": RunSpec(model=model, batch_size=2, seq_len=32).resolve("cpu"),
        "outcome": Outcome.OK,
        "environment": Facts(machine=machine),
        "samples": {"step_seconds": [0.5, 0.25, 1.0], "loss": [2.0, None, 1.5]},
        "memory": {"device_peak_bytes": 1000, "host_rss_peak_bytes": None, "pinned_bytes": 7},
    }
    return Result(**{**values, **changes})


def test_a_saved_result_is_found_and_loaded_unchanged(tmp_path: Path) -> None:
    store, saved = Store(tmp_path / "results"), result()
    path = store.save(saved)
    assert path == tmp_path / "results" / MACHINE / f"OPT-125M-resident-fp32-{saved.spec.hash}.json"
    assert store.find(saved.spec, MACHINE) == saved
    assert store.load() == store.load(MACHINE) == [saved]
    assert store.find(saved.spec.replace(seed=1), MACHINE) is None
    assert store.problems == []


def test_a_file_is_the_same_for_the_same_result_and_reads_well_in_a_diff(tmp_path: Path) -> None:
    path = Store(tmp_path).save(result())
    text = path.read_text()
    assert text.startswith('{\n "environment": {\n  "machine"')
    assert text == json.dumps(json.loads(text), sort_keys=True, indent=1) + "\n"
    assert Store(tmp_path).save(result()).read_text() == text


def test_facts_are_written_as_they_were_read() -> None:
    """Those of other programs, of which the machine has none (null), and those that a reader adds to them."""
    values = {"machine": MACHINE, "gpu": None, "os": "", "threads": 2, "rack": {"units": [4, None]}}
    facts = Facts.from_dict(values)
    assert (facts.threads, facts.gpu, facts.os) == (2, None, None)
    assert facts.to_dict() == values
    known = result(environment=facts).with_facts(gpu={"name": "G"}, turns=5.0)
    assert known.to_dict()["environment"] == {**values, "gpu": {"name": "G"}, "turns": 5.0}
    with pytest.raises(TypeError, match="`environment` must be Facts, but got a dict"):
        result(environment=values)


def test_a_journal_is_kept_beside_exactly_the_result_that_has_its_hash(tmp_path: Path) -> None:
    """A failed run leaves none, a new run replaces that of the run before, and merging the same result again none."""
    store, spec = Store(tmp_path), result().spec.replace(model="mine", config_hash="0" * 12)

    def save(text: str, *, drafted: str = "", spec: RunSpec = spec, **changes: Any) -> list[tuple[str, str]]:
        if drafted:
            store.draft(spec, MACHINE).write_text(drafted)
        facts = Facts(machine=MACHINE, journal_sha256=hashlib.sha256(text.encode()).hexdigest())
        path = store.save(result(spec=spec, **{"environment": facts, **changes}))
        assert [*tmp_path.glob(".*.journal")] == []
        return [(kept.stem == path.stem, kept.read_text()) for kept in tmp_path.rglob("*.journal")]

    assert save("one", drafted="one") == save("one") == [(True, "one")]
    assert save("one", spec=spec.replace(model="Mine 2")) == [(True, "one")]
    assert save("two", drafted="two") == [(True, "two")]
    assert save("three") == []
    assert save("four", drafted="another") == []
    assert save("five", drafted="five") == [(True, "five")]
    lost = {"outcome": Outcome.FAILED, "reason": "lost", "environment": Facts(machine=MACHINE)}
    assert save("", drafted="five", **lost) == []


@pytest.mark.parametrize("earlier", ["", "old"])
@pytest.mark.parametrize("written", [False, True])
def test_a_kill_while_a_result_is_stored_loses_no_journal(tmp_path, monkeypatch, earlier: str, written: bool) -> None:
    store = Store(tmp_path)

    def save(text: str) -> None:
        store.draft(result().spec, MACHINE).write_text(text)
        store.draft(result().spec, "cpu-1c-000000").write_text("another machine's")
        facts = Facts(machine=MACHINE, journal_sha256=hashlib.sha256(text.encode()).hexdigest())
        store.save(result(environment=facts))

    def killed(path: Path, data: bytes) -> None:
        if written:
            path.write_bytes(data)
        raise KeyboardInterrupt

    if earlier:
        save(earlier)
    with monkeypatch.context() as patch:
        patch.setattr(files, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            save("new")
    expected = ["new"] if written else [earlier] if earlier else []
    assert [store.journal(stored).read_text() for stored in store.load()] == expected
    save("new")
    (stored,) = store.load()
    assert store.journal(stored).read_text() == "new"
    assert store.journal(stored).parent.name == MACHINE
    assert [path.read_text() for path in tmp_path.glob(".*.journal")] == ["another machine's"]


def test_a_model_that_was_renamed_keeps_its_result_and_one_file(tmp_path: Path) -> None:
    store, spec = Store(tmp_path), result().spec.replace(model="mine", config_hash="0" * 12)
    first, other = result(spec=spec), result(spec=spec.replace(model="Mine 2"))
    assert first.spec.hash == other.spec.hash
    store.save(first)
    assert store.find(other.spec, MACHINE) == first
    path = store.save(other)
    assert store.find(first.spec, MACHINE) == store.find(other.spec, MACHINE) == other
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_every_finite_float_survives_saving_and_loading(values: list[float]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        saved = result(samples={"loss": list(values)})
        Store(Path(folder)).save(saved)
        (back,) = Store(Path(folder)).load()
        assert [v.hex() for v in back.samples["loss"]] == [v.hex() for v in values]  # type: ignore[union-attr]
        assert back == saved


@pytest.mark.parametrize("model", ["../../escape", "/etc/passwd", "..", "x\0y\nz", "模型", ".hidden", "m" * 5000])
def test_no_model_name_leaves_the_folder_of_the_machine(tmp_path: Path, model: str) -> None:
    store, named = Store(tmp_path / "results"), result(model)
    path = store.save(named)
    assert path.resolve().parent == (tmp_path / "results" / MACHINE).resolve()
    assert set(path.name) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
    assert store.load() == [named]


@pytest.mark.parametrize("machine", ["../up", ".", "a/b", "Paper", "x" * 101])
def test_a_machine_name_that_is_no_plain_folder_is_refused(tmp_path: Path, machine: str) -> None:
    with pytest.raises(ValueError, match=r"`machine` must be a short name of letters.*but got .*; for example cpu-2c"):
        Store(tmp_path).save(result(machine=machine))
    assert list(tmp_path.iterdir()) == []


GOOD = result().to_dict()


def nested(depth: int) -> list[Any]:
    """A list in a list in a list ..."""
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (json.dumps(GOOD)[:200].encode(),
         "JSON, but this is cut off at line 1, column .*; delete it, and the next sweep"),
        (b"", "whole JSON, but this is cut off at line 1, column 1; delete it, and the next sweep measures it again"),
        (b"hello", "must be whole JSON, but this is none .Expecting value. at line 1, column 1; delete it, and"),
        (b'{"some": }', r"JSON, but this is none \(Expecting value\) at line 1, column 10; delete it"),
        (b"\xff\xfe\x00", "decode|Expecting"),
        (b'{"some": "other program"}',
         "`schema_version` must be 1 to 3, but got None; this file is not a zobench result"),
        (json.dumps({**GOOD, "schema_version": 99}).encode(), "must be 1 to 3, but got 99; a newer zobench wrote"),
        (json.dumps({**GOOD, "spec": {"model": "m", "spede": 1}}).encode(), "unknown key 'spede'"),
        (json.dumps({**GOOD, "outcome": "great"}).encode(), "'great' is not a valid Outcome"),
        (json.dumps({**GOOD, "samples": {"step_seconds": "fast"}}).encode(), "`samples` must hold lists of finite"),
        (json.dumps({**GOOD, "timeline": [["u", "u", 0.5, 0.0, 1.0]]}).encode(), "`timeline` must hold rows of "),
        (json.dumps({**GOOD, "timeline": [["u", "u", 0, 2.0, 1.0]]}).encode(), "`timeline` must hold rows of "),
        (json.dumps({**GOOD, "trace": {"seconds": [0, 1], "rss_bytes": [1]}}).encode(), "`trace` must hold one number"),
        (json.dumps({**GOOD, "evaluation": {"definition": nested(30)}}).encode(), "nesting 20 levels"),
        (json.dumps({**GOOD, "reason": None}).encode(), "`reason` must be of type str"),
        (json.dumps({**GOOD, "samples": {"loss": [10**400]}}).encode(), "a number must fit 64 bits"),
        (json.dumps({**GOOD, "reason": "\ud800"}).encode(), "surrogates not allowed"),
        (b'{"schema_version": ' + b"9" * 5000 + b"}", "Exceeds the limit"),
        (json.dumps({**GOOD, "memory": {"a": float("nan")}}).encode(), "NaN is not JSON"),
        (json.dumps({**GOOD, "memory": {"a": 1}}).replace('"a": 1', '"a": 1e999').encode(), "numbers of 64 bits"),
        (b"[" * 100_000, "nesting 20 levels"),
    ],
)  # fmt: skip
def test_an_unreadable_file_is_reported_and_the_others_still_load(tmp_path: Path, content: bytes, why: str) -> None:
    store = Store(tmp_path)
    store.save(result())
    bad = tmp_path / MACHINE / "bad.json"
    bad.write_bytes(content)
    assert store.load() == [result()]
    (problem,) = store.problems
    assert problem.startswith(f"{bad}: ")
    assert "\n" not in problem
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(problem)


def test_what_is_no_file_is_reported_and_the_others_still_load(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.save(result())
    os.mkfifo(path.with_name("pipe.json"))
    path.with_name("folder.json").mkdir()
    path.with_name("gone.json").symlink_to("nowhere")
    assert store.load() == [result()]
    assert [problem.rpartition(": ")[2] for problem in store.problems] == [
        "a result must be a file, but this is none"
    ] * 3


def test_a_problem_is_one_short_line_that_a_terminal_shows_as_it_is(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.save(result()).with_name("\x1b[2Jbad.json")
    path.write_text(json.dumps({**GOOD, "outcome": "\x1b]0;title\x07" * 1000}))
    store.load()
    (problem,) = store.problems
    assert problem.isprintable()
    assert len(problem) < 1000


SEEN = {"step": 4, "loss": 0.5, "accuracy": 0.75, "count": 12}
EVALUATION: dict[str, Any] = {
    "start": {**SEEN, "step": 0, "loss": None, "accuracy": 0.5}, "best": SEEN,
    "curve": [[0, None, 0.5], [4, 0.5, 0.75]],
    "majority": {"dev": 0.5, "test": 0.6}, "test": {**SEEN, "accuracy": 0.625, "count": 16}, "definition": "",
}  # fmt: skip


def test_names_inside_a_result_cannot_take_the_place_of_our_columns(tmp_path: Path) -> None:
    named = result(memory={"model": 1, "machine": 2, "throughput": 3, "spec_hash": 4, "device_peak_bytes": 5})
    table = frame([named])
    assert table.loc[0, ["model", "machine", "throughput", "spec_hash", "device_peak_bytes"]].to_list() == [
        "OPT-125M", MACHINE, 128.0, named.spec.hash, 5,
    ]  # fmt: skip


def test_a_result_copied_to_another_machine_or_name_is_not_believed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.save(result())
    (tmp_path / "gpu-1").mkdir()
    (tmp_path / "gpu-1" / path.name).write_bytes(path.read_bytes())
    path.with_name("renamed.json").write_bytes(path.read_bytes())
    path.with_name("result.json").write_bytes(path.read_bytes())
    assert store.load() == [result()]
    renamed, a_run, moved = sorted(store.problems)
    assert "it is of the run in this folder" in a_run
    assert "its name does not belong to the spec inside" in renamed
    assert f"lies in the folder of another machine; move it to {path.parent}" in moved


def test_the_papers_folder_and_files_of_other_kinds_hold_no_results(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.save(result())
    written(tmp_path / "paper" / path.name, "{}")
    (tmp_path / "README.md").write_text("hello")
    (path.parent / ".half.json.1.tmp").write_text("{")
    assert store.load() == [result()]
    assert store.problems == []


@pytest.fixture
def read_only() -> Iterator[Store]:
    """A store with a result in folders that nobody may write into; root, who may all the same, is another user then."""
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as after:
        store = Store(Path(place) / "results")
        for folder in (store.save(result()).parent, store.root):
            folder.chmod(0o555)
            after.callback(folder.chmod, 0o755)
        if os.geteuid() == 0:
            Path(place).chmod(0o755)
            os.seteuid(65534)
            after.callback(os.seteuid, 0)
        yield store


def test_a_read_only_results_folder_is_read_and_what_would_write_there_is_one_line(read_only: Store) -> None:
    assert read_only.load() == [result()]
    with pytest.raises(StoreError) as refusal:
        read_only.save(result(reason="newer"))
    path = read_only.path(result().spec, MACHINE)
    assert refusal.value.strerror.startswith(f"a result must be writable, but got 'Permission denied' for {path}; ")
    with pytest.raises(StoreError, match=r"must be writable, but got 'Permission denied'; choose "), read_only.lock():
        pytest.fail("it is locked")
    assert read_only.load() == [result()]


def without(*path: str) -> dict[str, Any]:
    """``EVALUATION`` without what is at ``path``."""
    evaluation = json.loads(json.dumps(EVALUATION))
    place = evaluation
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return dict(evaluation)


@pytest.mark.parametrize(
    "evaluation",
    [
        *(without(key) for key in ("curve", "majority", "definition")),
        without("test", "count"),
        without("majority", "test"),
        EVALUATION | {"curve": [[0, 0.5]]},
        EVALUATION | {"best": SEEN | {"count": 0}},
        EVALUATION | {"test": SEEN | {"accuracy": 1.5}},
        EVALUATION | {"test": SEEN | {"loss": "low"}},
        *(EVALUATION | {KEY: sound} for sound in ({"right": "no", "loss": "="}, packed([(True, 0.5)] * 15))),
    ],
)
def test_an_evaluation_that_no_run_made_is_no_result(tmp_path: Path, evaluation: dict[str, Any]) -> None:
    store, sound = Store(tmp_path), result(evaluation=EVALUATION)
    path = store.save(sound)
    assert store.load() == [sound]
    path.write_text(json.dumps(sound.to_dict() | {"evaluation": without("test")}))
    assert len(store.load()) == 1, "a run that has not looked at the test set yet"
    path.write_text(json.dumps(sound.to_dict() | {"evaluation": evaluation}))
    assert store.load() == []
    assert "`evaluation` must hold what a fine-tuning run found on dev and test, but does not" in store.problems[0]


def test_which_examples_are_right_and_their_losses_are_kept(tmp_path: Path) -> None:
    examples = [(place % 3 == 0, 0.1 * place) for place in range(15)] + [(True, 1e9)]
    store, sound = Store(tmp_path), result(evaluation=EVALUATION | {KEY: packed(examples)})
    store.save(sound)
    known = unpacked(store.load()[0].evaluation)
    assert list(known.right) == [right for right, _ in examples]
    assert list(known.loss[:15]) == pytest.approx([loss for _, loss in examples[:15]], rel=1e-3)
    assert known.loss[15] == math.inf  # float16 ends at 65504
    assert sendable(sound).evaluation[KEY] == sound.evaluation[KEY]
    assert unpacked(EVALUATION) is None


def test_only_finished_results_carry_metrics() -> None:
    known = {name: value for name, value in metrics(result()).items() if value is not None}
    assert known == {"step_seconds": 0.5, "throughput": 64 / 0.5, "device_peak_bytes": 1000, "pinned_bytes": 7}
    for outcome in set(Outcome) - {Outcome.OK}:
        assert metrics(result(outcome=outcome)) == {}
    assert metrics(result(samples={}))["throughput"] is None
    memory = {"device_peak_bytes": 1, "device_wide_peak_bytes": 5}
    on_gpu = result(spec=RunSpec(model="OPT-125M").resolve("cuda:0"), memory=memory)
    assert metrics(on_gpu)["device_peak_bytes"] == 1, "the allocator's, as in the file"
    assert metrics(result(samples={"step_seconds": [None]}))["throughput"] is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": {"step_seconds": [0.0] * 6}}, "`samples.step_seconds` must be 1e-09 to 1e+09, but one is not"),
        ({"warmup": {"step_seconds": [-1.0]}}, "`warmup.step_seconds` must be 1e-09 to 1e+09, but one is not"),
        ({"memory": {"device_peak_bytes": -5}}, "`memory` must hold numbers of 64 bits, 0 or more, or null"),
        ({"timeline": [["a", "b", 0, -1e308, 1e308]]}, "`timeline` must hold rows of [lane, kind, block, start, end]"),
        ({"power": {"energy_joules": -1.0}}, "`power.energy_joules` must be as zobench writes it, but is not"),
        ({"power": {"other_cpu_cores": "x"}}, "`power.other_cpu_cores` must be as zobench writes it, but is not"),
        ({"parts": {"checkpoint_stall_seconds": [None, 1.0]}}, "`parts` must hold lists of finite numbers, but does"),
        ({"parts": {"update_survival": [-1.0]}}, "`parts` must hold numbers of 0 or more for zobench's own metrics"),
        *(
            (
                {"environment": {"machine": MACHINE, "hardware": {"gpus": gpus}}},
                "`environment.hardware.gpus` must be as",
            )
            for gpus in (None, "x", [None])
        ),
        *(
            ({"environment": {"machine": MACHINE, name: value}}, f"`environment.{name}` must be as zobench writes it")
            for name, value in [
                ("price_per_hour", "2.49"),
                ("target_accuracy", 85),
                ("memory_limit_bytes", 2**63),
                ("warm_up_detected", -3),
                ("writeback_plan", {"steps": 0, "reason": ""}),
            ]
        ),
    ],
)
def test_what_could_not_be_divided_by_or_drawn_is_no_result(tmp_path, changes, message) -> None:
    good = stores.run(next(stores.specs()))
    store = Store(tmp_path)
    path = store.save(good)
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | changes))
    assert store.load() == []
    assert message in store.problems[0]
