"""The machine's rates: measured once when it is idle, kept for every later command, planned with from then on."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zobench import cost
from zobench.execute.process import ask
from zobench.machine.files import locked, replace
from zobench.machine.memory import disk_folder
from zobench.machine.texts import json_of
from zobench.measure.threads import COUNT
from zobench.models import cache

SECONDS = 5.0  # about how long rates are measured
BUSY_CORES = 0.5
"""Cores kept busy by others from which on the machine's rates are not worth keeping: the fastest of many short calls
bears more than a step does, which :data:`zobench.measure.samples.DISTURBING_CORES` disturb."""
BUSY_SECONDS = 900.0  # so long those of a busy machine serve the commands that follow
IMPLAUSIBLE = 3.0  # a machine that was this many times faster before is measured again
_WORK = ("matmul_flops_per_second", "noise_elements_per_second", "copy_bytes_per_second")
"""Rates that the same hardware reaches under any version of the software, give or take."""


def calibration(root: Path, machine: str, device: str, disk_dir: Path | None) -> dict[str, Any]:
    """The machine's rates, with ``notes`` for people: those kept in ``root``, else by an earlier command of this user,
    else measured; jobs that start together measure once. Rates measured while others kept the machine busy serve for
    BUSY_SECONDS at most, where none are known of this hardware under other software."""
    path = kept_in(root, machine, device, disk_dir)
    if (kept := _usable(_text(path))) is not None:
        return kept
    with _alone(path.with_suffix(".lock")):
        kept = _usable(_text(path)) or _usable(cache.read("rates", path.name))
        if kept is None:
            if (lately := _usable(_lately(path.name))) is not None:
                return lately
            kept, lasting = _measured(device, disk_dir, _siblings(machine, device, disk_dir))
            cache.keep("rates" if lasting else "busy-rates", path.name, _json(kept))
            if not lasting:
                return kept
        try:
            replace(path, _json(kept).encode())
        except OSError:
            kept["notes"] = [*kept["notes"], f"not kept, because {path} cannot be written"]
    return kept


def are_known(root: Path, machine: str, device: str, disk_dir: Path | None) -> bool:
    """Whether :func:`calibration` would measure nothing."""
    path = kept_in(root, machine, device, disk_dir)
    return any(_usable(text) for text in (_text(path), cache.read("rates", path.name), _lately(path.name)))


def kept_in(root: Path, machine: str, device: str, disk_dir: Path | None = None) -> Path:
    """Returns where the rates are kept with the results in ``root``, under the name that they have among the user's."""
    return root / ".calibration" / f"{machine}-{_device_and_disk(device, disk_dir)}"


def _device_and_disk(device: str, disk_dir: Path | None) -> str:
    """The end of the name under which rates are kept: of the kind of device, the threads, and the disk."""
    folder = disk_folder(disk_dir)
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    disk = f"{existing.stat().st_dev:x}"
    return f"{device.partition(':')[0]}-{os.environ.get(COUNT, 'all')}-threads-{disk}.json"


def _lately(name: str) -> str | None:
    """Returns the rates that a command of the last BUSY_SECONDS measured on a busy machine: a second one would find it
    as busy."""
    try:
        age = time.time() - (cache.root() / "busy-rates" / name).stat().st_mtime
    except OSError:
        return None
    return cache.read("busy-rates", name) if 0 <= age < BUSY_SECONDS else None


def _measured(device: str, disk_dir: Path | None, earlier: Mapping[str, Any] | None) -> tuple[dict[str, Any], bool]:
    """(the rates to plan with, whether they are worth keeping). ``earlier``: of the same hardware, or None."""
    rates = measured(device, disk_dir)
    if slow := _slower(rates, earlier):
        rates = better(rates, measured(device, disk_dir))
    if (others := rates.get("other_cpu_cores") or 0.0) > BUSY_CORES:
        note = f"not kept, because other processes kept {others:.1f} cores busy"
        if earlier is not None:
            return {**earlier, "notes": [*earlier["notes"], f"{note}; planned with those of an idle time"]}, False
        return {**rates, "notes": [*rates["notes"], note]}, False
    if slow and (still := _slower(rates, earlier)):
        note = f"slower than before, measured twice: {', '.join(still)}; is the machine throttled?"
        rates["notes"] = [*rates["notes"], note]
    return rates, True


def measured(device: str, disk_dir: Path | None, seconds: float = SECONDS) -> dict[str, Any]:
    """The rates of ``device`` and of the disk under ``disk_dir``, measured in about ``seconds`` by a
    process that ends: this one would keep a context on the GPU, and every cell after it would count as disturbed."""
    return dict(json.loads(ask(CALIBRATE, device, str(disk_folder(disk_dir)), str(seconds))))


def _slower(rates: Mapping[str, Any], earlier: Mapping[str, Any] | None) -> list[str]:
    before, now = _flat(earlier or {}), _flat(rates)
    return [name for name, rate in before.items() if now.get(name, rate) * IMPLAUSIBLE < rate]


def better(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The second measurement, with whatever the first one did faster: others take time from both, and give none."""
    best: dict[str, Any] = dict(second)
    for name in _WORK:
        slow, fast = first[name], second[name]
        best[name] = {key: max(slow[key], fast[key]) for key in fast} if isinstance(fast, dict) else max(slow, fast)
    first_operators, others = (rates.get("operators_per_second", {}) for rates in (first, second))
    best["operators_per_second"] = {
        kind: {name: max(rate, first_operators.get(kind, {}).get(name, 0.0)) for name, rate in rates.items()}
        for kind, rates in others.items()
    }
    return best


def _flat(rates: Mapping[str, Any]) -> dict[str, float]:
    """The rates of work by a name for people: ``matmul fp32``."""
    flat: dict[str, float] = {}
    for name in _WORK:
        word, values = name.partition("_")[0], rates.get(name)
        parts = {f"{word} {key}": rate for key, rate in values.items()} if isinstance(values, dict) else {word: values}
        flat |= {key: rate for key, rate in parts.items() if rate}
    return flat


def _siblings(machine: str, device: str, disk_dir: Path | None) -> dict[str, Any] | None:
    """The newest rates kept of the same hardware under other software, which the end of ``machine`` stands for."""
    like = f"{machine.rpartition('-')[0]}-*-{_device_and_disk(device, disk_dir)}"
    kept_before = (cache.root() / "rates").glob(like)
    newest = sorted(kept_before, key=lambda path: path.stat().st_mtime, reverse=True)
    return next((rates for path in newest if (rates := _usable(_text(path))) is not None), None)


def _usable(text: str | None) -> dict[str, Any] | None:
    """The rates of ``text``; None if there are none, or those of another version, which lack something."""
    try:
        kept = dict(json_of(text or ""))
        cost.Rates.of(kept)
        kept["operators_per_second"]
    except (ValueError, TypeError, KeyError):
        return None
    return kept


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return None


def _json(rates: Mapping[str, Any]) -> str:
    return json.dumps(rates, indent=1, sort_keys=True)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Holds the lock ``path`` inside the block; without a lock where its folder or file system does not allow one."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(path))
        yield


CALIBRATE = """
import json, sys
from zobench.measure.calibrate import calibrate
print(json.dumps(calibrate(sys.argv[1], float(sys.argv[3]), sys.argv[2])))
"""
