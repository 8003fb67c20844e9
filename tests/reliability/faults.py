"""Faults of disks, clocks and other people: each with what came of it, held against a run without the fault."""

import builtins
import errno
import importlib
import io
import itertools
import mmap
import os
import random
import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from tests.reliability import stored, tuning
from tests.reliability.board import Board, start, wait
from tests.reliability.kills import made
from tests.reliability.log import Log
from tests.support.small_task import write_data, write_weights
from zobench.store import Store, StoreError
from zobench.store.files import BusyError
from zobench.store.merge import merge

STEPS = 12
"""Of a fine-tuning run here: enough for some snapshots and evaluations."""
WAYS = ("journal", "sync", "async", "resident", "adam", "examined")
"""Of fine-tuning: they differ in what they write, and when."""
LATER = (1, 2, 4, 8, 16, 32, 64, 128)
"""Places at which a fault is put where not at all of them."""
ROOM = "64m"
"""Of a tmpfs that has enough of it."""
WRITES = ("write", "open", "fsync", "name", "folder")
UNHARMED = "it ended as if nothing had been"
DAY, STEPS_OF_A_DAY = 86_400.0, 4_320


@dataclass(kw_only=True, slots=True)
class FailingDisk:
    """From the ``at``-th operation on files below a folder on, of all processes that are forked after it was put in
    place, those of the ``kinds`` fail with ``code``; ``once``: only that one. A write first takes half of its bytes."""

    at: int
    code: int = errno.ENOSPC
    once: bool = False
    kinds: tuple[str, ...] = WRITES
    _memory: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 16))

    @property
    def seen(self) -> int:
        """Operations so far."""
        return int(np.frombuffer(self._memory, dtype=np.int64)[0])

    def install(self, folder: Path) -> None:
        """Puts it in the way of this process's files below ``folder``, its temporary ones among them."""
        names = ("open", "pwrite", "pwritev", "posix_fallocate", "fsync", "replace", "rename")
        own, inside = str(folder.absolute()), {name: getattr(os, name) for name in names}
        tempfile.tempdir = str(folder / "tmp")
        os.makedirs(tempfile.tempdir, exist_ok=True)
        make, opened = os.mkdir, io.open

        def is_inside(path: Any) -> bool:
            return isinstance(path, (str, os.PathLike)) and os.path.abspath(path).startswith(own)

        def of_handle(handle: int) -> bool:
            return os.readlink(f"/proc/self/fd/{handle}").startswith(own)

        def pwrite(handle: int, data: Any, place: int) -> int:
            if of_handle(handle) and self._fails("write"):
                inside["pwrite"](handle, bytes(data)[: len(data) // 2], place)
                raise self._error()
            return int(inside["pwrite"](handle, data, place))

        def pwritev(handle: int, buffers: Any, place: int) -> int:
            if of_handle(handle) and self._fails("write"):
                raise self._error()
            return int(inside["pwritev"](handle, buffers, place))

        def posix_fallocate(handle: int, place: int, length: int) -> None:
            if of_handle(handle) and self._fails("write"):
                raise self._error()
            inside["posix_fallocate"](handle, place, length)

        def os_open(path: Any, flags: int, *arguments: Any, **more: Any) -> int:
            if is_inside(path) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and self._fails("open"):
                raise self._error(path)
            return int(inside["open"](path, flags, *arguments, **more))

        def fsync(handle: Any) -> None:
            number = handle if isinstance(handle, int) else handle.fileno()
            if of_handle(number) and self._fails("fsync"):
                raise self._error()
            inside["fsync"](handle)

        def naming(name: str) -> Callable[..., None]:
            def move(source: Any, target: Any, **more: Any) -> None:
                if is_inside(target) and self._fails("name"):
                    raise self._error(target)
                inside[name](source, target, **more)

            return move

        def mkdir(path: Any, *arguments: Any, **more: Any) -> None:
            if is_inside(path) and self._fails("folder"):
                raise self._error(path)
            make(path, *arguments, **more)

        def open_(file: Any, mode: str = "r", *arguments: Any, **more: Any) -> Any:
            if not is_inside(file) or not set(mode) & set("wax+"):
                return opened(file, mode, *arguments, **more)
            if self._fails("open"):
                raise self._error(file)
            return _File(opened(file, mode, *arguments, **more), self)

        os.open, os.pwrite, os.pwritev, os.posix_fallocate = os_open, pwrite, pwritev, posix_fallocate  # type: ignore[assignment]
        os.fsync, os.mkdir = fsync, mkdir  # type: ignore[assignment]
        os.replace, os.rename = naming("replace"), naming("rename")  # type: ignore[assignment]
        io.open = builtins.open = open_  # type: ignore[assignment]

    def _fails(self, kind: str) -> bool:
        if kind not in self.kinds:
            return False
        count = np.frombuffer(self._memory, dtype=np.int64)
        count[0] += 1
        return bool(count[0] == self.at if self.once else count[0] >= self.at)

    def _error(self, path: Any = None) -> OSError:
        return OSError(self.code, os.strerror(self.code), *([str(path)] if path is not None else []))


class _File:
    """An open file whose writes can fail."""

    def __init__(self, file: Any, disk: FailingDisk) -> None:
        self._file, self._disk = file, disk

    def write(self, data: Any) -> int:
        if self._disk._fails("write"):
            self._file.write(data[: len(data) // 2])
            self._file.flush()
            raise self._disk._error()
        return int(self._file.write(data))

    def __enter__(self) -> Self:
        self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._file.__exit__(*error)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def line(fault: str, case: str, outcome: str, harm: str = "") -> dict[str, Any]:
    """A line of the log; ``harm``: what should not have come of it."""
    return {"kind": "fault", "fault": fault, "case": case, "outcome": outcome, "harm": harm}


class Disturbed:
    """Runs of a workload that are disturbed, each gone on with undisturbed and compared."""

    def __init__(self, fault: str, work: tuning.Tuning | stored.Writing, place: Path, log: Log) -> None:
        self.fault, self.work, self._place, self._log = fault, work, place, log
        self._numbers = itertools.count(1)
        work.whole()

    def known(self, case: str) -> dict[str, Any] | None:
        """The log's line of a case that an earlier process has tried."""
        named = self.fault, f"{self.work.name}: {case}"
        return next((told for told in self._log.of("fault") if (told["fault"], told["case"]) == named), None)

    def run(
        self, case: str, disturb: Callable[[Path], None], mend: Callable[[Path], None] = lambda folder: None
    ) -> dict[str, Any]:
        """One run with ``disturb`` in its way, which ``mend`` takes out of it."""
        name = f"run-{next(self._numbers)}"
        self.work.disturb = disturb
        folder = self._place / name
        log = self._place / (f"{name}.0.log" if isinstance(self.work, tuning.Tuning) else f"{name}.log")
        if isinstance(self.work, tuning.Tuning):
            (end,) = self.work._run(folder, [Board(tuning.PHASES)], {})
        else:
            end = wait(self.work._start(name, Board(self.work.phases), None))
        said = log.read_text(errors="replace")
        self.work.disturb = lambda folder: None
        mend(folder)
        check = self.work.finish(name)
        harm = [f"it had to be ended: {end}"] if end.code is None else []
        harm += ["a traceback"] if "Traceback" in said else []
        harm += [check.differs] if check.differs else []
        harm += [f"left behind: {left}" for left in _left(folder)]
        told = [
            text
            for text in said.splitlines()
            if "Error: " in text or text.startswith(("warning: ", "not stored: ", "failed: "))
        ]
        harm += [f"it ended with {end.code} and said nothing"] if end.code and not told else []
        outcome = told[-1] if told else UNHARMED
        if os.path.ismount(folder):
            subprocess.run(["umount", str(folder)], check=True)
        shutil.rmtree(folder, ignore_errors=True)
        return line(self.fault, f"{self.work.name}: {case}", _shortened(outcome, self._place), "; ".join(harm))


def _left(folder: Path) -> list[str]:
    """Files that an interrupted write has left, after the run has ended."""
    return sorted(path.name for path in folder.rglob("*.tmp") if "/tmp/" not in str(path.relative_to(folder)))


def _shortened(text: str, place: Path) -> str:
    return " ".join(text.replace(str(place), "FOLDER").split())[:300]


class Bench:
    """The workloads that faults disturb, in folders below ``place``."""

    def __init__(self, place: Path, log: Log) -> None:
        self.place, self._log = place, log
        (place / "weights").mkdir()
        (place / "data").mkdir()
        self._weights, self._data = write_weights(place / "weights"), write_data(place / "data")
        for path in (*place.rglob("*"), place):  # also for another user
            path.chmod(0o755)
        tuning.warm(self._weights)
        stored.warm()
        importlib.import_module("encodings.utf_8_sig")  # which another user may not read here

    def tuning(self, fault: str, way: str) -> Disturbed:
        """A fine-tuning run."""
        folder = self._folder(f"{fault} {way}")
        return Disturbed(fault, tuning.Tuning(way, folder, self._weights, self._data, STEPS), folder, self._log)

    def writing(self, fault: str, kind: type[stored.Writing]) -> Disturbed:
        """A sweep, jobs or a merge."""
        folder = self._folder(f"{fault} {kind.name}")
        return Disturbed(fault, kind(folder), folder, self._log)

    def all(self, fault: str, but: Sequence[type[stored.Writing]] = ()) -> list[Disturbed]:
        """Every workload that faults disturb."""
        kinds: tuple[type[stored.Writing], ...] = (stored.Sweeping, stored.Working, stored.Merging)
        writers = [self.writing(fault, kind) for kind in kinds if kind not in but]
        return [*writers, *(self.tuning(fault, way) for way in WAYS)]

    def _folder(self, name: str) -> Path:
        return made(self.place / name.replace(" ", "-").replace(",", ""))


def at_every(disturbed: Disturbed, more: dict[str, Any], places: Iterable[int]) -> Iterator[dict[str, Any]]:
    """The disk fails from the n-th operation on, for every n of ``places`` that a run comes to."""
    for at in places:
        disk = FailingDisk(at=at, **more)
        known = disturbed.known(f"operation {at}")
        told = known or disturbed.run(f"operation {at}", disk.install)
        if not known and disk.seen < at:
            return
        yield told


def in_turns(tries: Sequence[Iterator[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """All of them, the first of each first, so that a campaign that is stopped has tried some of each."""
    for row in itertools.zip_longest(*tries):
        yield from filter(None, row)


def full_disks(bench: Bench) -> Iterator[dict[str, Any]]:
    """ENOSPC from an operation on: of a sweep each of them, of the others the first ones and some later."""
    sweep, *others = bench.all("disk full")
    some = (*range(1, 33), *range(48, 1000, 16))
    yield from in_turns([at_every(sweep, {}, itertools.count(1)), *(at_every(one, {}, some) for one in others)])


def lossy_mounts(bench: Bench) -> Iterator[dict[str, Any]]:
    """One operation of a kind fails, once: of a sweep each of them, of the others some."""
    tries = []
    for kind, code in (("name", errno.ESTALE), ("open", errno.ESTALE), ("write", errno.EIO), ("fsync", errno.EIO)):
        told = f"lossy mount, {kind} fails once"
        more = {"kinds": (kind,), "code": code, "once": True}
        sweep, *others = bench.all(told)
        tries += [at_every(sweep, more, itertools.count(1)), *(at_every(one, more, LATER) for one in others)]
    yield from in_turns(tries)


def small_disks(bench: Bench) -> Iterator[dict[str, Any]]:
    """A tmpfs of more and more pages, until a run fits; then it is made larger, and the run goes on."""
    if not _may_mount(bench.place):
        yield line("tmpfs", "every size", "not run: this user may not mount one", "")
        return
    yield from in_turns([_sizes(one) for one in bench.all("tmpfs")])


def _sizes(disturbed: Disturbed) -> Iterator[dict[str, Any]]:
    for kib in itertools.count(disturbed.work.grain, disturbed.work.grain):
        case = f"{kib} KiB are free"
        told = disturbed.known(case) or disturbed.run(case, partial(_onto_tmpfs, "size={used}", kib), _grown)
        yield told
        if told["outcome"] == UNHARMED:
            return


def _onto_tmpfs(options: str, kib: int, folder: Path) -> None:
    """Puts a tmpfs in the place of ``folder``, with what that holds and so much room more."""
    below = folder.with_name(f"{folder.name}.below")
    if folder.exists():
        folder.rename(below)
    folder.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={ROOM}", "none", str(folder))
    if below.exists():
        shutil.copytree(below, folder, dirs_exist_ok=True)
        shutil.rmtree(below)
    told = os.statvfs(folder)
    used = (told.f_blocks - told.f_bfree) * told.f_frsize
    _mount("-o", f"remount,{options.format(used=used + kib * 1024)}", str(folder))


def _grown(folder: Path) -> None:
    """The tmpfs at ``folder`` has room and may be written to."""
    _mount("-o", f"remount,rw,size={ROOM}", str(folder))


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], capture_output=True, check=True)


def _may_mount(place: Path) -> bool:
    folder = place / "mount"
    folder.mkdir()
    try:
        _mount("-t", "tmpfs", "none", str(folder))
    except (OSError, subprocess.CalledProcessError):
        return False
    subprocess.run(["umount", str(folder)], check=True)
    return True


def read_only(bench: Bench) -> Iterator[dict[str, Any]]:
    """Folders that may not be written to: by another user's rights, and by their mount."""
    for disturbed in bench.all("read-only folder", but=(stored.Merging,)):
        yield disturbed.run("another user's folder", partial(_as_other, None))
    if _may_mount(bench.place):
        for disturbed in bench.all("read-only mount"):
            yield disturbed.run("from the beginning", partial(_onto_tmpfs, "ro", 0), _grown)
    else:
        yield line("read-only mount", "from the beginning", "not run: this user may not mount one", "")
    for disturbed in bench.all("mount that becomes read-only"):
        yield from at_every(disturbed, {"code": errno.EROFS}, LATER)


def _as_other(umask: int | None, folder: Path) -> None:
    """This process becomes another user's, for whom the folder and those above it are to read."""
    for path in [folder, *folder.parents]:
        if str(path).startswith(tempfile.gettempdir()) and path != Path(tempfile.gettempdir()) and path.exists():
            path.chmod(0o755)
    if umask is not None:
        os.umask(umask)
    os.setgid(65534)
    os.setuid(65534)


def clocks(bench: Bench) -> Iterator[dict[str, Any]]:
    """The wall clock jumps by up to a day at every look, forward and back; files are older than what they follow."""
    for disturbed in bench.all("clock jumps"):
        yield disturbed.run("by up to a day, forward and back", jumping)


def clock_set_back(bench: Bench) -> Iterator[dict[str, Any]]:
    """The wall clock is set back once, in the run."""
    for disturbed in bench.all("clock set back"):
        yield disturbed.run("by an hour, once, in the run", set_back)


def jumping(folder: Path) -> None:
    """From now on this process's wall clock jumps."""
    random_, real = random.Random(5), time.time
    time.time = lambda: real() + random_.uniform(-DAY, DAY)  # type: ignore[assignment]


def set_back(folder: Path) -> None:
    """After the twentieth look at it this process's wall clock is an hour behind, as after a correction, and stays so;
    what follows is written with earlier times than what was before."""
    looks, real = itertools.count(), time.time
    time.time = lambda: real() - 3600.0 * (next(looks) >= 20)  # type: ignore[assignment]


def two_users(bench: Bench) -> Iterator[dict[str, Any]]:
    """Two processes, or two users, on one store or one run."""
    place = bench.place / "two"
    place.mkdir()
    place.chmod(0o777)
    work = stored.Merging(place)
    work._prepare(place / "from")
    yield from _both(place, work)
    yield _not_mine(place)
    yield _unreadable(place)


def _both(place: Path, work: stored.Merging) -> Iterator[dict[str, Any]]:
    """Two merge into one store at once, again and again, until both are done; other runs are saved meanwhile."""
    into = place / "into"

    def merging(name: str) -> int:
        for _ in range(500):
            try:
                merge([place / "from" / name], into)
                return 0
            except BusyError:
                time.sleep(0.002)
        return 1

    pids = [start(partial(merging, name), place / f"{name}.log") for name in ("one", "two")]
    ends = [wait(pid) for pid in pids]
    found, expected = Store(into), place / "expected"
    merge([place / "from" / "one", place / "from" / "two"], expected)
    wanted = {result.spec.hash for result in Store(expected).runs()}
    there = {result.spec.hash for result in found.runs()}
    harm = [f"ended with {end.code}" for end in ends if end.code != 0] + found.problems
    harm += [] if there == wanted else [f"{len(wanted ^ there)} cells are not in both"]
    told = "the second waits its turn (one line: must have one writer); no run is lost"
    yield line("two users", "two merge into one store at once", told, "; ".join(harm))
    results = Store(expected).runs()

    def saving(seed: int) -> int:
        order, store = list(results), Store(into)
        random.Random(seed).shuffle(order)
        for result in order:
            store.save(result)
        return 0

    pids = [start(partial(saving, seed), place / f"save-{seed}.log") for seed in (1, 2)]
    ends = [wait(pid) for pid in pids]
    again = Store(into)
    harm = [f"ended with {end.code}" for end in ends if end.code != 0]
    harm += [] if len(again.runs()) == len(wanted) and not again.problems else ["a file is torn"]
    harm += [f"left behind: {name}" for name in _left(into)]
    yield line(
        "two users", "two jobs save the same cells at once", "every file is whole, of one or the other", "; ".join(harm)
    )


def _not_mine(place: Path) -> dict[str, Any]:
    """A store that is another user's: it is read, and not written to."""
    told, into = place / "not-mine", place / "into"
    told.touch(mode=0o666)
    told.chmod(0o666)
    into.chmod(0o755)

    def act() -> int:
        _as_other(None, place)
        said = []
        store = Store(into)
        results = store.runs()
        for try_ in (lambda: store.save(results[0]), lambda: merge([place / "from" / "one"], into)):
            try:
                try_()
                said.append("it was written to")
            except StoreError as error:
                said.append(" ".join((error.strerror or str(error)).split()))
        told.write_text("\n".join([f"{len(results)} read", *said]))
        return 0

    end = wait(start(act, place / "not-mine.log"))
    lines = told.read_text().splitlines()
    harm = [] if end.code == 0 and lines and not any("written to" in text for text in lines) else [f"{end}: {lines}"]
    told_ = _shortened("; ".join(lines), place)
    return line("two users", "a store that another user owns", told_, "; ".join(harm))


def _unreadable(place: Path) -> dict[str, Any]:
    """With umask 077 one user's results are nobody else's: the other is told of each, and reads the rest."""
    into, told = place / "into", place / "unreadable"
    told.touch()
    told.chmod(0o666)
    paths = Store(into).paths()
    for path in paths[:3]:
        path.chmod(0o600)

    def act() -> int:
        _as_other(None, place)
        store = Store(into)
        told.write_text("\n".join([f"{len(store.runs())} read", *store.problems]))
        return 0

    end = wait(start(act, place / "unreadable.log"))
    lines = told.read_text().splitlines()
    harm = [] if end.code == 0 and len(lines) == 4 and lines[0] == f"{len(paths) - 3} read" else [f"{end}: {lines}"]
    outcome = _shortened("; ".join(lines[:2]), place)
    return line("two users", "results that another user's umask hides", outcome, "; ".join(harm))


# --- a day ------------------------------------------------------------------------------------------------------------


def soak(bench: Bench) -> Iterator[dict[str, Any]]:
    """A run of :data:`STEPS_OF_A_DAY` steps on clocks that go through a day: nothing grows but the journal, by what a
    step is in it."""
    folder = bench.place / "soak"
    folder.mkdir()
    work = tuning.Tuning("journal", folder, bench._weights, bench._data, STEPS_OF_A_DAY)
    work.spec = work.spec.replace(eval_every=STEPS_OF_A_DAY // 20, checkpoint_every=STEPS_OF_A_DAY // 40, lr=1e-6)
    told = folder / "told.jsonl"
    work.disturb, work.limit = partial(_day, told, STEPS_OF_A_DAY), 3600.0
    (end,) = work._run(folder / "run", [Board(tuning.PHASES)], {})
    rows = [[float(word) for word in text.split()] for text in told.read_text().splitlines()]
    assert end.code == 0, work._said("run")
    assert len(rows) >= 18, rows
    first, last = rows[2], rows[-1]
    steps = last[0] - first[0]
    growth = (last[1] - first[1]) / steps
    names = ("open files", "threads")
    harm = [
        f"{name}: {a:.0f} after {first[0]:.0f} steps, {b:.0f} at the end"
        for name, a, b in zip(names, first[2:4], last[2:4], strict=True)
        if b > a
    ]
    per_step = {(b[4] - a[4]) / (b[0] - a[0]) for a, b in itertools.pairwise(rows[2:])}
    record = 3 * 52
    harm += (
        [f"the journal grows by {per_step} bytes a step"]
        if not all(record <= one <= record + 1 for one in per_step)
        else []
    )
    harm += [f"memory grows by {growth:.0f} bytes a step"] if growth > 4096 else []
    yield line(
        "24 hours in simulated time",
        f"{STEPS_OF_A_DAY:,} steps of {DAY / STEPS_OF_A_DAY:.2f} s, 20 evaluations, 40 snapshots beside the steps",
        f"open files {last[2]:.0f}, threads {last[3]:.0f}, as at its beginning; "
        f"journal {min(per_step):.1f} bytes a step; memory {growth:.0f} bytes a step (the samples and the journal that "
        f"it holds), {last[1] / 2**20:.0f} MiB at its end; {end.cpu:.0f} s of processor",
        "; ".join(harm),
    )  # fmt: skip


def _day(told: Path, steps: int, folder: Path) -> None:
    """From now on every step takes its share of a day on this process's clocks, and twenty of them are looked at."""
    from zobench.training.training import Training

    clock, own = [0.0], Training._step
    real = {name: getattr(time, name) for name in ("time", "monotonic", "perf_counter")}
    for name, function in real.items():
        setattr(time, name, lambda function=function: function() + clock[0])

    def step(training: Training) -> None:
        own(training)
        clock[0] += DAY / steps
        done = training._record.step
        if done % (steps // 20) == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
            counts = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
            size = (folder / "journal.bin").stat().st_size
            with told.open("a") as file:
                file.write(f"{done} {pages} {counts[0]} {counts[1]} {size}\n")

    Training._step = step  # type: ignore[assignment, method-assign]


FAULTS: dict[str, Callable[[Bench], Iterator[dict[str, Any]]]] = {
    "disk full": full_disks, "tmpfs": small_disks, "lossy mount": lossy_mounts, "read-only": read_only,
    "clocks": clocks, "clock set back": clock_set_back, "two users": two_users,
}  # fmt: skip


def campaign(log: Log, part: str, only: str = "") -> int:
    """Tries the faults, or the day; how many of them did harm."""
    os.environ |= {"OMP_NUM_THREADS": "1"}
    place = Path(tempfile.mkdtemp(prefix="zobench-faults-"))
    done = {told["fault"] for told in log.of("done")}
    try:
        bench = Bench(place, log)
        for name, fault in {**FAULTS, "soak": soak}.items():
            if (name == "soak") != (part == "soak") or (only and only != name) or name in done:
                continue
            for told in fault(bench):
                if any(one["fault"] == told["fault"] and one["case"] == told["case"] for one in log.of("fault")):
                    continue
                log.add({**told, "part": name})
                print(
                    f"{told['fault']}: {told['case']}: {told['outcome']}{told['harm'] and ' HARM: ' + told['harm']}",
                    flush=True,
                )
            log.add({"kind": "done", "fault": name})
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return sum(bool(told["harm"]) for told in log.of("fault"))


def summary(log: Log) -> str:
    """What came of the faults, as a table in Markdown: a row for each fault and outcome."""
    tries = log.of("fault")
    rows: dict[tuple[str, str, str], Counter[str]] = {}
    for told in tries:
        row = told["fault"], _kind(told["outcome"]), told["harm"]
        rows.setdefault(row, Counter())[_PLACE.sub("", told["case"])] += 1
    lines = [
        f"{len(tries):,} tries; harm in {sum(bool(told['harm']) for told in tries)} of them.", "",
        "| fault | tries | outcome | harm |", "|---|---|---|---|",
    ]  # fmt: skip
    for (fault, outcome, harm), where in sorted(
        rows.items(), key=lambda row: (_ORDER.index(row[0][0].split(",")[0]), row[0][0])
    ):
        counted = ", ".join(f"{case} {count}" if count > 1 else case for case, count in where.items())
        lines.append(f"| {fault} | {counted} | {outcome} | {harm or 'none'} |")
    return "\n".join(lines)


_PLACE = re.compile(
    r": (operation \d+|\d+ KiB are free|from the beginning|another user's folder|by up to a day.*|by an hour.*)$"
)
"""What of a case is not its workload."""
_ORDER = (
    "disk full", "tmpfs", "lossy mount", "read-only folder", "read-only mount", "mount that becomes read-only",
    "clock jumps", "clock set back", "two users", "24 hours in simulated time",
)  # fmt: skip


def _kind(outcome: str) -> str:
    """The outcome without names of files, of errors and of steps."""
    told = re.sub(r"^\w+Error: (\[Errno \d+\] (?=a result|FOLDER))?", "", outcome)
    told = re.sub(r"after \d+ steps", "after … steps", told)
    files = r"[A-Za-z0-9_.-]+-[0-9a-f]{12}(-r\d+)?\.json|FOLDER[^ `;,)'\"]*|(?<![A-Za-z])/[^ `;,)'\"]+"
    return re.sub(files, "…", told).replace("|", "/")
