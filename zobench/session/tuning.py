"""The object of a fine-tuning run or an evaluation: its spec, whether it fits this machine, its ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zobench import models
from zobench.cost import sizes
from zobench.execute import plan
from zobench.machine import memory
from zobench.machine.device import choose_device
from zobench.machine.texts import gigabytes
from zobench.recipes import matrix
from zobench.result import Result, finite
from zobench.runspec import DECLARED, RunSpec, check_effect
from zobench.runspec.registries import scheme_of
from zobench.session.inputs import check_places, no_run
from zobench.stats.significance import Difference
from zobench.store import without_place
from zobench.store.files import RESULT
from zobench.training import grids
from zobench.training.assemble import disk_dir
from zobench.training.assess import EndedRun
from zobench.training.choices import begun


def tuned_spec(values: dict[str, Any], device: str) -> tuple[RunSpec, list[str]]:
    """The resolved spec of a run with these ``values``, and a line for each value that was chosen, with the reason."""
    chosen, why = choose_device(str(values.pop("device", device)))
    taken, reason = grids.defaults(values)
    values = {"weights": "pretrained", **values, **taken}
    draft = matrix.asked(values)
    check_effect(draft, values)
    spec, notes = draft.resolve(chosen), [why, reason]
    if "seq_len" not in values:
        positions = models.position_count(spec) - scheme_of(spec).virtual_tokens
        is_longest = positions <= spec.seq_len
        spec = spec.replace(seq_len=min(spec.seq_len, positions))
        length = f"the longest text that {spec.model} takes here" if is_longest else "as in the papers"
        notes.append(f"seq_len: {spec.seq_len}, {length}")
    return spec, [note for note in notes if note]


def spec_of_run(values: Mapping[str, Any], device: str, begun_in: Path | None) -> tuple[RunSpec, list[str]]:
    """As :func:`tuned_spec`; of a run that goes on in the folder ``begun_in`` what its journal says, with which
    ``values`` and ``device`` must agree. Raises ``ValueError`` where they do not, and where there is neither a run nor
    values that name one."""
    spec = None if begun_in is None else begun(begun_in)
    if begun_in is None or (spec is None and {"model", "task"} <= values.keys()):
        return tuned_spec(dict(values), device)
    if spec is None:
        raise no_run(begun_in)
    fields = dict(values)
    asked_device = str(fields.pop("device", device))
    chosen, _ = choose_device(spec.device if asked_device == "auto" else asked_device)
    name, model = str(fields.pop("name", spec.model)), str(fields.pop("model", spec.model))
    wanted = spec.replace(**fields).resolve(chosen)
    is_model = model == spec.model or models.identifying_name(model) in (spec.model, spec.model_path)
    moved = {"task_file": wanted.task_file} if "task" in fields else {}
    if not is_model and spec.config_hash:  # a folder that was moved or renamed is the same model
        other = models.identified(spec.replace(model=model, name="", model_path="", config_hash="", weights_hash=""))
        is_model = (other.config_hash, other.weights_hash) == (spec.config_hash, spec.weights_hash)
        moved["model_path"] = other.model_path
    differs = [f"model={model}"] * (not is_model) + [f"name={name}"] * (name != spec.model)
    differs += [
        f"{key}={value}" for key, value in wanted.to_dict().items()
        if value != spec.to_dict()[key] and not DECLARED[key].unhashed
    ]  # fmt: skip
    if differs:
        raise ValueError(
            f"`--resume` goes on with the run in {begun_in}, {spec.label}, but got {', '.join(differs)}, which it does "
            "not have; leave that out, or name another --out"
        )
    return spec.replace(**moved), [f"resume: {spec.task_name} and all else as the journal in {begun_in} says"]


def evaluated_spec(values: dict[str, Any], run: EndedRun | None, device: str) -> tuple[RunSpec, str]:
    """The spec of an evaluation, which fits this machine, and why on that device: that of a ``run`` with ``values``, or
    of a pretrained model. Raises ``ValueError`` where the model is predicted not to fit."""
    chosen, why = choose_device(str(values.pop("device", device)))
    if run is not None:
        trained = run.spec.alone()
        wanted = trained.replace(**values)
        fixed = [] if run.has_whole_model else [
            name for name, field in DECLARED.items()
            if getattr(wanted, name) != getattr(trained, name)
            and not (field.of_task or field.unhashed or name == "batch_size")
        ]  # fmt: skip
        if fixed:
            raise ValueError(
                f"`{fixed[0]}` must be the run's, because its journal gives an adapter's weights as they were trained, "
                f"but got {getattr(wanted, fixed[0])!r}; leave it out"
            )
        spec = models.identified(wanted).resolve(chosen)
    elif values.get("task", "none") == "none":
        raise ValueError("`--task` must be given, but is not; see `zobench list tasks`")
    else:
        spec = matrix.single({"weights": "pretrained", **values}, chosen)
    if misfit := plan.misfit(spec, disk_dir()):
        raise ValueError(f"the model must fit this machine, but {misfit}")
    return spec, why


def check_fits(runs: Mapping[Path, RunSpec], *, is_search: bool = False) -> None:
    """Raises ``ValueError`` if a run (by its folder) that is not finished has no tokenizer, or does not fit into
    memory, or its snapshots onto the disk: best, newest, one being written, and in a search those of the leader. To be
    called before the first: what that keeps of a device in this process would count as taken."""
    left = {folder: spec for folder, spec in runs.items() if not (folder / RESULT).exists()}
    room = plan.limits(next(iter(left.values())).device, disk_dir()) if left else None
    for folder, spec in left.items():
        if misfit := plan.misfit(spec, disk_dir(), room):
            raise ValueError(f"the run must fit this machine, but {misfit}")
        need, have = (3 + (is_search and len(runs) > 1)) * sizes.snapshot_bytes(spec), memory.free_disk_bytes(folder)
        if need > have:
            raise ValueError(
                f"`--out` must have room for snapshots of {gigabytes(need)}, but {gigabytes(have)} are free "
                f"for {folder}; name another folder"
            )
        models.tokenizer_place(spec)


def checked_folder(out: Path | None, spec: RunSpec, data_dir: Path | None, results: Path, kind: str = "") -> Path:
    """The folder ``out`` of a run, or one named by its spec and ``kind``, once all folders will do."""
    words = (spec.model, spec.task_name, spec.method, spec.scheme, kind or spec.hash)
    folder = out or Path("runs") / "-".join(words)
    check_places(folder, data_dir, results)
    return folder


def seeds_of(values: Mapping[str, Any], count: int | None) -> Sequence[int]:
    """The seeds of ``count`` runs, from that in ``values`` on; of a command without ``--seeds`` one."""
    first = int(values.get("seed", 0))
    if count is not None and count < 2:
        raise ValueError(f"`--seeds >= 2` must hold, but got {count}; leave it out for one run")
    if count is not None and (gpus := int(values.get("gpus", 1))) > 1:
        raise ValueError(f"`--seeds` must have one device, but got gpus={gpus}; give each seed by itself")
    return range(first, first + (count or 1))


def seeds_dict(results: Sequence[Result], means: Mapping[str, Difference]) -> dict[str, Any]:
    """Runs that differ in their seed alone, and the mean of each score with its 95 % interval, as JSON."""
    body: dict[str, Any] = {"seeds": [result.spec.seed for result in results]}
    for name, mean in means.items():
        body[name] = {"mean": mean.value, "interval": finite([mean.low, mean.high])}
    return body | {"runs": [without_place(result).to_dict() for result in results]}


def as_ranks(
    spec: RunSpec, options: Sequence[str], device: str, paths: Mapping[str, Path | str | None],
    flags: Mapping[str, bool], log: Sequence[str] = (),
) -> int:  # fmt: skip
    """Runs the same ``zobench finetune`` as each rank of ``spec``: its exit code. ``options``: KEY=VALUE of fields;
    ``paths`` and ``flags``: by their option. ``ZOBENCH_RESTARTS``: how often ranks start again after one was lost."""
    from zobench.parallel.launch import again

    restarts = os.environ.get("ZOBENCH_RESTARTS", "0")
    if not restarts.isdecimal():
        raise ValueError(f"`ZOBENCH_RESTARTS` must be a whole number, but got {restarts!r}; for example 2")
    arguments = ["finetune", *(f"--set={option}" for option in options), "--device", device]
    arguments += [word for option, path in paths.items() if path is not None for word in (option, str(path))]
    arguments += [flag for flag, is_given in flags.items() if is_given]
    return again([*arguments, *(f"--log={name}" for name in log)], spec, restarts=int(restarts))
