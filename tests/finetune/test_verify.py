"""`zobench verify`: a run's journal gives its accuracies again, to the digit, and one bit of it changed gives none."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.support.small_task import spec_of, write_data, write_weights
from zobench.durable import journal
from zobench.methods.base import Taken
from zobench.methods.low_rank import REDRAWN
from zobench.result import Result
from zobench.runspec import RunSpec
from zobench.stats.significance import exceeds
from zobench.store.sendable import sendable
from zobench.training import finetune as run
from zobench.training.assess import _placed, verify


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, weights_path: Path, data_dir: Path) -> tuple[Path, Result]:
    """The folder of a run that has ended, and its result."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    made = spec_of(weights_path, noise="counter", engine="offload", queries=2, lr=1e-2)
    return folder, run(made, folder=folder, data_dir=data_dir)


@pytest.fixture
def copied(ended: tuple[Path, Result], tmp_path: Path) -> Path:
    return Path(shutil.copytree(ended[0], tmp_path / "copy", ignore=shutil.ignore_patterns("model")))


def edited(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    values = json.loads((folder / "result.json").read_text())
    change(values)
    (folder / "result.json").write_text(json.dumps(values))


def refused(folder: Path, data_dir: Path, **more: Any) -> str:
    with pytest.raises(ValueError) as error:  # noqa: PT011 (what it says is compared by each test)
        verify(folder, data_dir=data_dir, **more)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_stored_accuracies_come_from_journal_and_base_weights_alone(ended, copied, data_dir) -> None:
    _, result = ended
    assert sorted(path.name for path in copied.iterdir() if "snapshot" in path.name) == []
    for name in ("curve.csv", "curve.jsonl"):
        (copied / name).unlink()
    verified = verify(copied, data_dir=data_dir)
    assert [seen.point for seen in verified.seen] == [result.evaluation["best"], result.evaluation["test"]]
    assert sendable(result).environment.journal_sha256 == result.environment.journal_sha256
    assert verified.seconds > 0


@pytest.mark.parametrize("sealed", [True, False], ids=["its SHA-256 in the result", "a result from before that"])
def test_a_journal_with_one_bit_changed_or_an_end_cut_off_is_refused(copied, data_dir, sealed) -> None:
    if not sealed:
        edited(copied, lambda values: values["environment"].pop("journal_sha256"))
    path = copied / "journal.bin"
    whole = path.read_bytes()
    places = {0, 17, 20, len(whole) // 2, *range(len(whole) - 110, len(whole), 21), len(whole) - 1}
    for place in sorted(places):
        for bit in (0, 5):
            changed = bytearray(whole)
            changed[place] ^= 1 << bit
            path.write_bytes(changed)
            assert "journal.bin" in refused(copied, data_dir), f"bit {bit} of byte {place}"
    for size in (0, 5, 300, len(whole) - 5 * 52, len(whole) - 52, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert "journal.bin" in refused(copied, data_dir), f"{size} bytes"
    path.write_bytes(whole)
    verify(copied, data_dir=data_dir)


def test_a_run_whose_weights_rest_in_8_bits_is_verified(spec, data_dir, tmp_path) -> None:
    """Each of its evaluations began with an update that was not rounded yet."""
    packed = spec(engine="offload", wire="fp8", noise="counter", steps=5, eval_every=0, lr=1e-2)
    evaluation = run(packed, folder=tmp_path, data_dir=data_dir).evaluation
    seen = verify(tmp_path, data_dir=data_dir).seen
    assert [each.point for each in seen] == [evaluation["best"], evaluation["test"]]


def test_a_step_whose_update_the_published_program_draws_anew_is_verified_and_no_other_update(
    tmp_path: Path, data_dir: Path, spec: Callable[..., RunSpec]
) -> None:
    lozo = spec(method="lozo", definition="as-shipped", noise="counter", steps=3, eval_every=3, options={"interval": 2})
    folder = tmp_path / "lozo"
    run(lozo, folder=folder, data_dir=data_dir)
    assert verify(folder, data_dir=data_dir).result.spec == lozo
    path = folder / "journal.bin"
    header, items = journal.read(path)
    second = next(item for item in items if isinstance(item, Taken) and item.step == 1)
    edited(folder, lambda stored: stored["environment"].pop("journal_sha256"))
    for changes, why in (
        ({"seed": second.entries[0].seed + REDRAWN}, "but those of step 1 have another seed or step: it was changed"),
        ({"lr": 2 * lozo.lr}, "must have the learning rates of its run, but step 1 has not 0.001: it was changed"),
    ):
        forged = replace(second, entries=(replace(second.entries[0], **changes),))
        path.unlink()
        with journal.JournalFile(path, header) as file:
            file.append(*(forged if item is second else item for item in items))
        assert why in refused(folder, data_dir)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("lozo-m", {"interval": 2}), ("zo-muon", {"interval": 2, "rank": 4}), ("eggroll", {}), ("zo-adam", {}),
    ],
)  # fmt: skip
def test_weights_are_the_journals_where_forwards_are_in_16_bits(method, options, tmp_path, data_dir, spec) -> None:
    queries = {"zo-muon": 4, "eggroll": 4}.get(method, 1)
    changes = {"method": method, "options": options, "queries": queries, "lr": 1e-2, "steps": 6, "eval_every": 6}
    cast = spec(noise="counter", autocast="bf16", **changes)
    stored = run(cast, folder=tmp_path / "cast", data_dir=data_dir).evaluation
    seen = verify(tmp_path / "cast", data_dir=data_dir).seen
    assert [evaluation.loss for evaluation in seen] == [stored["best"]["loss"], stored["test"]["loss"]]
    assert stored["best"]["step"] == 6, "only weights that were changed can tell"


def test_a_run_on_a_gpu_whose_blocks_were_pinned_is_verified_on_a_cpu(spec: Any) -> None:
    ran = spec(noise="counter", engine="offload").replace(device="cuda:0", tier="pinned")
    assert (_placed(ran, "", "cpu").device, _placed(ran, "", "cpu").tier) == ("cpu", "pageable")


def test_what_is_not_the_run_is_refused(copied: Path, data_dir: Path, tmp_path: Path, weights_path: Path) -> None:
    other = write_weights(Path(shutil.copytree(weights_path, tmp_path / "other")))
    tensors = load_file(other / "model.safetensors")
    first = next(name for name in tensors if tensors[name].dim() == 2)
    tensors[first][0, 0] += 1
    save_file(tensors, other / "model.safetensors", {"format": "pt"})
    assert refused(copied, data_dir, model=str(other)).startswith(
        "the base weights must be those that the journal began from (sha256 "
    )
    moved = Path(shutil.copytree(weights_path, tmp_path / "moved"))
    assert verify(copied, data_dir=data_dir, model=str(moved)).seen  # the same weights elsewhere
    data = write_data(tmp_path)
    rows = (data / "SST-2" / "train.tsv").read_text().replace("\t0", "\t1", 3)
    (data / "SST-2" / "train.tsv").write_text(rows)
    assert "the task's data must be those of the run, but its labels are" in refused(copied, data)
    edited(
        copied,
        lambda values: values["evaluation"]["test"].update(accuracy=values["evaluation"]["test"]["accuracy"] / 2),
    )
    assert "the evaluation on test must be the stored one, but after step" in refused(copied, data_dir)
    edited(copied, lambda values: values["evaluation"]["curve"][1].__setitem__(2, 0.0))
    assert "must have the curve on dev that its result says, but has another" in refused(copied, data_dir)
    (copied / "result.json").unlink()
    assert refused(copied, data_dir).startswith("`RUN` must be the folder of a run that has ended, or a stored ")


def test_the_command_says_what_it_saw_and_whether_a_target_is_exceeded(ended, data_dir, zobench) -> None:
    folder, result = ended
    accuracy = result.evaluation["test"]["accuracy"]
    wanted = {"": 0, "5%": 0 if exceeds(round(accuracy * 16), 16, 0.05) < 0.01 else 1, "99%": 1}
    for target, code in wanted.items():
        words = ["verify", str(folder), "--data-dir", str(data_dir), *(["--target", target] if target else [])]
        ended_with, shown, _ = zobench(*words)
        out = shown.splitlines()
        assert ended_with == code
        assert out[0] == f"journal: 10 steps, whole, SHA-256 {result.environment.journal_sha256}"
        assert f"accuracy {accuracy!r}, as stored" in out[2]
        assert out[-1] == f"verified: {folder}"
        assert len(out) == 5 + bool(target)
    for ending, message in ("", "`RUN` must be a folder, but got"), (".json", "`RUN` must be the folder of a run"):
        ended_with, _, err = zobench("verify", "a" * 300 + ending)
        assert (ended_with, err.splitlines()[-1].startswith(f"zobench: {message}")) == (2, True), err
