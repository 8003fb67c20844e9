"""What the fuzzing feeds: for each kind of input real ones to begin with, and the readers that get what came of them.

A target is made once for a folder and then gives a function that draws an input, feeds it, and says whether it was
accepted; a refusal is the reader's own ``ValueError`` or ``OSError``. What was accepted goes on to whatever shows it:
no control character may reach a terminal, no element an HTML page, no macro a LaTeX table.
"""

import copy
import io
import itertools
import json
import random
import shutil
import struct
import tarfile
import tomllib
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from safetensors.torch import save

from tests.reliability.mutate import EVIL, MARK, edited, flipped, json_text, toml_text
from tests.support import pages, stores
from tests.support.rates import CALIBRATION
from tests.support.tables import CLAIMS, PAPER, TINY, tuned
from tools import cpu_cells
from zobench import cost, recipes
from zobench.cli import listing
from zobench.cli.console import outcome_line
from zobench.durable import journal, snapshot
from zobench.durable.journal import JournalFile
from zobench.durable.snapshot import SnapshotStart, SnapshotWeights, Writer
from zobench.engine import Entry
from zobench.engine.base import Position
from zobench.execute import rates
from zobench.methods.base import Taken
from zobench.models import checkpoint, identity, inspection
from zobench.recipes import matrix
from zobench.report import artifacts, load_table
from zobench.report.render import FORMATS, render
from zobench.result import Outcome, Result, Round
from zobench.runspec import RunSpec
from zobench.store import Store, frame, text_of
from zobench.store.compare import compare
from zobench.store.merge import merge
from zobench.store.pack import pack
from zobench.store.trace import trace

Feed = Callable[[random.Random], bool]
ROOT = Path(__file__).parents[2]


def drawn(random_: random.Random, texts: Sequence[bytes], write: Callable[[Any], bytes], trees: Sequence[Any]) -> bytes:
    """A text that is nearly one of ``texts``: its bytes changed, or its tree edited and written again."""
    if random_.random() < 0.3:
        return flipped(random_, random_.choice(texts))
    return write(edited(random_, copy.deepcopy(random_.choice(trees))))


def in_file(
    path: Path, read: Callable[[Path], object], trees: Sequence[Any], write: Callable[[Any], bytes] = json_text
) -> Feed:
    """Draws a file that is nearly one of ``trees``, and has it read; False or None from ``read`` is a refusal."""
    texts = [write(tree) for tree in trees]

    def feed(random_: random.Random) -> bool:
        path.write_bytes(drawn(random_, texts, write, trees))
        return read(path) not in (False, None)

    return feed


# --- results ----------------------------------------------------------------------------------------------------------


def samples() -> list[Result]:
    """Results with everything that they can hold, but short."""
    specs = list(itertools.islice(stores.specs(), 0, 40, 7))
    short: dict[str, Any] = {
        "samples": {"step_seconds": [100.0, 101.0], "loss": [2.0, None]},
        "timeline": [["upload", "upload", 0, 0.1, 0.2], ["compute", "compute", 0, 0.2, 0.3]],
        "trace": {"seconds": [0.1, 0.2], "rss_bytes": [1 << 29, 1 << 30]},
    }
    repeated = stores.run(specs[0], **short, round=Round(number=1, began=5.0, place=0, cells=2, seed=9))
    failed = stores.run(specs[1], outcome=Outcome.FAILED, reason="it broke", traceback="Traceback", **short)
    return [*(stores.run(spec, number, **short) for number, spec in enumerate(specs)), repeated, failed, tuned(0.9)]


def result_files(folder: Path) -> Feed:
    """Files in a store, and what stores, exports, compares and lists them."""
    store = Store(folder / "store")
    published = sorted((ROOT / "results" / "published").glob("*/*.json"), key=lambda path: path.stat().st_size)[:6]
    trees = [
        *(json.loads(text_of(result)) for result in samples()),
        *(json.loads(path.read_text()) for path in published),
    ]

    def feed(random_: random.Random) -> bool:
        tree = random_.choice(trees)
        spec, machine = RunSpec.from_dict(tree["spec"]), tree["environment"]["machine"]
        path = store.path(spec, machine, int((tree.get("round") or {}).get("number", 0)))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(drawn(random_, [json_text(tree)], json_text, [tree]))
        store.problems = []
        result = store.read(path)
        assert all(problem.isprintable() for problem in store.problems), store.problems
        if result is None:
            return False
        assert store.save(result) == path
        frame([result]).to_csv()
        compare([result], [result])
        if result.timeline:
            json.dumps(trace(result), allow_nan=False)
        screen = Console(file=io.StringIO(), width=random_.choice((60, 80, 200)), force_terminal=False)
        listing.show_runs(screen, [result])
        screen.print(outcome_line(result))
        plain(screen.file.getvalue())  # type: ignore[attr-defined]
        return True

    return feed


def plain(text: str) -> None:
    """Raises ``AssertionError`` for a character that a terminal might obey."""
    odd = sorted({char for char in text if not char.isprintable() and char not in "\n"})
    assert not odd, f"control characters on the screen: {odd}"


def harmless(form: str, text: str) -> None:
    """Raises ``AssertionError`` for what a reader of that format would take for more than text."""
    assert form != "latex" or f"\\{MARK}" not in text, "a macro of a result's is in a LaTeX table"
    assert form != "markdown" or f"<{MARK}" not in text, "an element of a result's is in a Markdown table"
    assert f"\n| {MARK}" not in text, "a row of a result's is in a table"
    assert f"\n# {MARK}" not in text, "a heading of a result's is on the page"


def results_shown(folder: Path) -> Feed:
    """Results whose every text is hostile, in tables of all formats and on the page."""
    text = (TINY + CLAIMS).replace("M1", "OPT-125M").replace("M2", "OPT-350M").replace("seq_len = 100", "")
    (folder / "tiny.toml").write_text(text)
    table, every = load_table(folder / "tiny.toml"), samples()
    scripts = pages.page(pages.book((pages.result(),))).count("<script")

    def feed(random_: random.Random) -> bool:
        tree = json.loads(text_of(random_.choice(every)))
        for key in ("reason", "traceback"):
            tree[key] = random_.choice(EVIL)
        tree["warnings"] = [random_.choice(EVIL), "the times may not count: " + random_.choice(EVIL)]
        tree["environment"] |= {"description": random_.choice(EVIL), random_.choice(EVIL): random_.choice(EVIL)}
        tree["spec"]["model"] = random_.choice(("OPT-125M", "x" + random_.choice(EVIL)))
        if random_.random() < 0.3:
            rates = edited(random_, copy.deepcopy(CALIBRATION))
            tree["environment"]["calibration"] = rates if isinstance(rates, dict) else {}
        tree["outcome"] = random_.choice(("ok", "failed", "oom", "contaminated"))
        tree["spec"].pop("seq_len")
        result = Result.from_dict(tree)
        try:
            json.dumps(result.to_dict(), ensure_ascii=False).encode()
        except UnicodeEncodeError:  # half of a pair of escapes, which the reader of results refuses
            return False
        for form in FORMATS:
            text = render(table, [result], form, reference=PAPER)
            if form != "csv":
                plain(text)
            harmless(form, text)
        if random_.random() < 0.1:  # which takes long
            text = pages.page(pages.book((result,)))
            assert f"<{MARK}" not in text, "an element of a result's is on the page"
            assert text.count("<script") == scripts, "a script of a result's is on the page"
            assert "\x1b" not in text
        return True

    return feed


# --- specs, commands, recipes -----------------------------------------------------------------------------------------


def run_specs(folder: Path) -> Feed:
    """Specs as JSON, which a cell's process and a job's folder get."""
    trees = [spec.to_dict() for spec in itertools.islice(stores.specs(), 0, 60, 7)]
    trees += [
        tuned(0.9).spec.to_dict(),
        {"model": "opt-tiny", "method": "lozo", "noise": "counter", "options": {"interval": 7}},
    ]

    def read(path: Path) -> bool:
        body = json.loads(path.read_bytes())
        if not isinstance(body, dict):
            return False
        spec = RunSpec.from_dict(body).resolve("cpu")
        assert RunSpec.from_dict(spec.to_dict()) == spec or any(value != value for value in spec.to_dict().values())
        assert len(spec.hash) == 12
        return isinstance(spec.label, str)

    return in_file(folder / "spec.json", read, trees)


def recipe_files(kind: str, folder: Path) -> Feed:
    """Runners, tables or figures."""

    def read(path: Path) -> object:
        if kind == "runners":
            return matrix.load(path, "cpu", price=lambda unit, spec: (1.0, 0.0))
        return artifacts.load_file(path)

    trees = [tomllib.loads(path.read_text()) for path in sorted(recipes.folder(kind).rglob("*.toml"))]
    return in_file(folder / "mine.toml", read, trees, toml_text)


# --- files of a machine -----------------------------------------------------------------------------------------------


def calibrations(folder: Path) -> Feed:
    """Rates of a machine, stored or in a result, and what is predicted from them."""
    spec = RunSpec(model="OPT-125M", engine="offload").resolve("cpu")

    def read(path: Path) -> bool:
        kept = rates._usable(rates._text(path))
        if kept is not None:
            cost.estimate(spec, cost.Rates.of(kept))
        cpu_cells.kept(folder)
        return kept is not None

    return in_file(folder / cpu_cells.RATES, read, [CALIBRATION])


# --- a run's folder ---------------------------------------------------------------------------------------------------


def journals(folder: Path) -> Feed:
    """Journals: bytes changed, records or the head changed and summed again."""
    spec = RunSpec(model="opt-tiny").resolve("cpu").to_dict()
    header, path = {"run": "0123456789ab", "spec": spec, "base": "b", "complete": True}, folder / "journal.bin"
    with JournalFile(path, header) as file:
        for step in range(6):
            entry = Entry(step=step, seed=step + 7, g=0.5, lr=1e-3, subspace=step // 2, extra=0.1 * (step % 2))
            file.append(
                Taken(
                    step=step, loss=2.0, lr=1e-3, seconds=0.1, applied=True, passes=2,
                    directions=((step + 7, None),), gradients=(0.5,), entries=(entry,),
                )
            )  # fmt: skip
            if step % 3 == 0:
                file.append(journal.EvaluationItem(step=step + 1, loss=1.0, accuracy=0.5, count=12, passes=1))
    whole = path.read_bytes()
    records = whole.split(b"\n", 2)[2]
    bodies = [records[at : at + journal.SIZE - 4] for at in range(0, len(records), journal.SIZE)]

    def summed(head: bytes, rows: Sequence[bytes]) -> bytes:
        chain = zlib.crc32(head)
        text = journal.MAGIC + b"%08x %s\n" % (chain, head)
        for row in rows:
            chain = zlib.crc32(row, chain)
            text += row + struct.pack("<I", chain)
        return text

    def changed(random_: random.Random) -> bytes:
        kind = random_.randrange(3)
        if kind == 0:
            return flipped(random_, whole)
        if kind == 1:
            return summed(json_text(edited(random_, copy.deepcopy(header))), bodies)
        rows = [bytearray(row) for row in bodies]
        for _ in range(random_.randrange(1, 4)):
            row = random_.choice(rows)
            row[random_.randrange(len(row))] = random_.randrange(256)
        if random_.random() < 0.3:
            random_.shuffle(rows)
        return summed(json_text(header), rows[random_.randrange(2) :])

    def feed(random_: random.Random) -> bool:
        path.write_bytes(changed(random_))
        if not journal.is_begun(path.read_bytes()):
            return False
        read_head, items = journal.read(path)
        journal.check_header(path, read_head, header)
        with JournalFile(path, header):
            pass
        return bool(items)

    return feed


def snapshots(folder: Path) -> Feed:
    """Snapshots: their manifest, summed anew, and their shards."""
    writer = Writer(folder, 3)
    for unit in ("block 0", "block 1"):
        for first in (0, 64):
            writer.add(unit, first, torch.arange(64, dtype=torch.uint8))
    positions = dict.fromkeys(("block 0", "block 1"), Position(passes=2, applied=1, part=0))
    path = writer.finish({"run": "r", "base": "b", "step": 3, "positions": snapshot.to_json(positions)})
    state = path / snapshot.STATE
    tree = json.loads(state.read_text())
    text, (shard,) = json_text(tree), list(path.glob("*.safetensors"))
    whole = shard.read_bytes()

    def feed(random_: random.Random) -> bool:
        shard.write_bytes(whole)
        kind, manifest = random_.randrange(3), copy.deepcopy(tree)
        if kind == 0:
            state.write_bytes(drawn(random_, [text], json_text, [tree]))
        else:
            del manifest["sum"]
            if kind == 1:
                manifest = edited(random_, manifest)
            else:
                shard.write_bytes(_tensors(random_, whole))
                manifest["shards"] = {shard.name: {"bytes": shard.stat().st_size, "sum": snapshot.checksum(shard)}}
            sum_ = snapshot._sum(manifest) if isinstance(manifest, dict) else ""
            state.write_bytes(json_text({**manifest, "sum": sum_} if isinstance(manifest, dict) else manifest))
        snapshot.steps(folder)
        snapshot.passes(path)
        start = SnapshotStart(path)
        for unit in ("block 0", "block 1"):
            start.position(unit)
            start.fill(unit, torch.empty(128, dtype=torch.uint8))
        weights = SnapshotWeights(path)
        for name in weights.names:
            weights.fill(name, torch.empty(64, dtype=torch.uint8))
        return True

    return feed


def _tensors(random_: random.Random, whole: bytes) -> bytes:
    """A file of safetensors with its header edited or its bytes changed."""
    length = int.from_bytes(whole[:8], "little")
    kind = random_.randrange(4)
    if kind == 0:
        return flipped(random_, whole)
    if kind == 1:
        length_said = random_.choice((0, 1, length - 1, length + 1, len(whole), 2**31, 2**63 - 1, 2**63, 2**64 - 1))
        return length_said.to_bytes(8, "little") + whole[8:]
    header = json_text(edited(random_, json.loads(whole[8 : 8 + length])))
    padded = header.ljust(length) if kind == 2 else header
    return len(padded).to_bytes(8, "little") + padded + whole[8 + length :]


# --- models -----------------------------------------------------------------------------------------------------------


LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32,
}  # fmt: skip
OPT: dict[str, Any] = {
    "model_type": "opt", "architectures": ["OPTForCausalLM"], "vocab_size": 64, "hidden_size": 16, "ffn_dim": 24,
    "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 32, "word_embed_proj_dim": 16,
}  # fmt: skip


def model_configs(folder: Path) -> Feed:
    """``config.json`` of a model's folder."""

    def read(path: Path) -> bool:
        identity.config_hash(folder)
        checkpoint.check_config(folder)
        values = identity.read_config(folder)
        layers = [values.get(key) for key in ("num_hidden_layers", "n_layer")]
        # many are built on the meta device one by one, which is no reading; it costs the time
        if not any(isinstance(count, (int, float)) and 200 < count <= identity.MOST_LAYERS for count in layers):
            inspection.inspect(folder)
        return True

    trees = [LLAMA, OPT, {"model_type": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 64}]
    for tree in trees:  # transformers imports a model's module at first use, which is no reading either
        (folder / identity.CONFIG).write_bytes(json_text(tree))
        inspection.inspect(folder)
    return in_file(folder / identity.CONFIG, read, trees)


def safetensors(folder: Path) -> Feed:
    """A model's weights: headers, and the index of shards."""
    whole = save({f"layer.{place}.weight": torch.ones(4, 3) for place in range(3)}, {"format": "pt"})
    shard, single, index = (
        folder / "model-00001-of-00001.safetensors",
        folder / identity.SINGLE,
        folder / identity.INDEX,
    )
    tree = {"metadata": {"total_size": 144}, "weight_map": {f"layer.{n}.weight": shard.name for n in range(3)}}
    text = json_text(tree)
    (folder.parent / "secret.safetensors").write_bytes(whole)

    def feed(random_: random.Random) -> bool:
        for path in (shard, single, index):
            path.unlink(missing_ok=True)
        kind = random_.randrange(3)
        if kind == 0:
            shard.write_bytes(whole)
            index.write_bytes(drawn(random_, [text], json_text, [tree]))
        else:
            (shard if kind == 1 else single).write_bytes(_tensors(random_, whole))
            if kind == 1:
                index.write_bytes(text)
        identity.weights_hash(folder)
        places = checkpoint.tensors(folder)
        assert all(path.resolve().parent == folder.resolve() for path in places.values()), places
        from safetensors import safe_open

        for name, path in places.items():
            with safe_open(path, framework="pt") as handle:
                handle.get_tensor(name)
        return True

    return feed


def gguf_files(folder: Path) -> Feed:
    """GGUF files, described and read as they lie."""
    from tests.support.small_gguf import of_llama
    from zobench.models import gguf

    source = folder / "small.gguf"
    of_llama(source)
    whole = source.read_bytes()
    head = 2500

    def feed(random_: random.Random) -> bool:
        path = folder / "one.gguf"
        changed = bytearray(whole)
        kind = random_.randrange(3)
        if kind == 0:
            changed = bytearray(whole[: random_.randrange(len(whole))])
        else:
            for _ in range(random_.choice((1, 1, 2, 4))):
                place = random_.randrange(4, 300 if kind == 1 else head)
                changed[place] = random_.choice((0, 1, 255, random_.randrange(256)))
        path.write_bytes(bytes(changed))
        shutil.rmtree(folder / "cache", ignore_errors=True)
        description = gguf.described(path)
        assert torch.get_default_device().type == "cpu"
        shutil.rmtree(description, ignore_errors=True)
        return True

    return feed


# --- archives ---------------------------------------------------------------------------------------------------------


NAMES = (
    "../x.json", "a/../../x.json", "/tmp/x.json", "a/b/x.json", ".a/x.json", "a/\x1b[2J.json", "a/x.json/../../y.json",
    "a//x.json", "./a/x.json", "a/.x.json", "a/x.json\x00", "\udcff/x.json", "a\\..\\x.json", "paper/x.json", "a",
    "a/", "",
    "C:/x.json", "a/x.json ", "~root/x.json",
)  # fmt: skip
KINDS = (b"0", b"1", b"2", b"3", b"5", b"6", b"S")
"""A file, a link, a symbolic link, a device, a folder, a pipe, a file with holes, as tar has them."""


def archives(folder: Path) -> Feed:
    """Archives that somebody sends: what they put where, and what they bring into a store."""
    store, every = Store(folder / "own"), samples()
    for archive in every:
        store.save(archive)
    pack(store.root, folder / "own.tar.gz")
    whole = (folder / "own.tar.gz").read_bytes()
    names = [path.relative_to(store.root).as_posix() for path in store.paths()]
    texts = [path.read_bytes() for path in store.paths()]
    trees = [json.loads(text) for text in texts]
    file, target = folder / "sent.tar.gz", folder / "target"

    def member(random_: random.Random, tar: tarfile.TarFile) -> None:
        place = random_.randrange(len(names))
        content = (
            texts[place]
            if random_.random() < 0.5
            else drawn(random_, texts[place : place + 1], json_text, trees[place : place + 1])
        )
        info = tarfile.TarInfo(names[place] if random_.random() < 0.7 else random_.choice(NAMES))
        if random_.random() < 0.3:
            info.type = random_.choice(KINDS)
            info.linkname = random_.choice(("/etc/passwd", "../../secret", names[0]))
        info.size = len(content) if info.type == tarfile.REGTYPE else 0
        tar.addfile(info, io.BytesIO(content))

    def feed(random_: random.Random) -> bool:
        if random_.random() < 0.3:
            file.write_bytes(flipped(random_, whole))
        else:
            with tarfile.open(file, "w:gz", compresslevel=1, errors="surrogateescape") as tar:
                for _ in range(random_.randrange(1, 4)):
                    member(random_, tar)
        shutil.rmtree(target, ignore_errors=True)
        try:
            merged = merge([file], target)
        finally:
            strange = [path for path in target.rglob("*") if path.is_symlink() or not (path.is_file() or path.is_dir())]
            assert not strange, f"the archive put {strange} into the store"
        assert all(problem.isprintable() for problem in merged.problems), merged.problems
        merged_store = Store(target)
        merged_store.runs()
        assert not merged_store.problems, merged_store.problems
        return merged.added > 0

    return feed


TARGETS: dict[str, Callable[[Path], Feed]] = {
    "result files": result_files, "results shown": results_shown, "specs": run_specs,
    "runners": partial(recipe_files, "runners"), "tables": partial(recipe_files, "tables"),
    "figures": partial(recipe_files, "plots"), "calibrations": calibrations, "journals": journals,
    "snapshots": snapshots, "config.json": model_configs, "safetensors": safetensors, "GGUF": gguf_files,
    "archives": archives,
}  # fmt: skip
