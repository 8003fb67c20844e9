"""Authors' own programs: refused, run and watched in their own Python, whatever they do.

The program of most tests is a tiny repository made here: a trainer with MeZO's methods, or a shell script in the place
of its interpreter. Those that ``zobench program add`` knows on this machine are run too.
"""

import ast
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.files import script, written
from tests.support.plugin import commands
from tests.support.processes import gone
from tests.support.rates import RATES
from zobench import programs
from zobench.execute import plan, process
from zobench.execute.process import run_in_process
from zobench.programs import author_cell, authors, clones
from zobench.programs.asking import ADAPTER, added
from zobench.programs.cell import run as measured
from zobench.result import Facts, Outcome, Result
from zobench.runspec import RunSpec
from zobench.store import Store, is_current

SPEC = RunSpec(
    model="opt-tiny", seq_len=16, batch_size=2, steps=3, warmup=1, lr=1e-3, weight_decay=0.1, program="mezo"
).resolve("cpu")
VERSIONS = {"python": "3.9.18", "torch": "2.1.0", "transformers": "4.28.1", "numpy": "1.26.4"}
TRAINER = """
import time

import numpy as np
import torch

print("noise on standard output")


class OurTrainer:
    def __init__(self, model, args):
        self.model, self.args = model, args

    def create_optimizer_and_scheduler(self, num_training_steps):
        assert num_training_steps == 4

    def zo_forward(self, model, inputs):
        with torch.inference_mode():
            return model(**inputs).loss.detach()

    def move(self, change):
        torch.manual_seed(self.seed)
        for name, tensor in self.model.named_parameters():
            tensor.data = change(tensor.data, torch.normal(0, 1, size=tensor.shape, dtype=tensor.dtype), name)

    def zo_step(self, model, inputs):
        end = time.process_time() + 0.2  # longer than between two samples of what it uses
        while time.process_time() < end:
            pass
        eps, self.seed = self.args.zo_eps, np.random.randint(1000000000)
        self.move(lambda w, z, name: w + z * eps)
        plus = self.zo_forward(model, inputs)
        self.move(lambda w, z, name: w - 2 * z * eps)
        minus = self.zo_forward(model, inputs)
        self.move(lambda w, z, name: w + z * eps)
        self.projected_grad = ((plus - minus) / (2 * eps)).item()

    def zo_update(self, model):
        lr, decay, g = self.args.learning_rate, self.args.weight_decay, self.projected_grad
        still = ("bias", "layer_norm", "layernorm")
        self.move(lambda w, z, n: w - lr * (g * z + (0 if any(word in n for word in still) else decay) * w))
"""


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=n", "-c", "user.email=e@x")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(autouse=True)
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(clones.FOLDER, str(tmp_path / "config"))
    return tmp_path / "config"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with MeZO's trainer as it is needed here."""
    folder = tmp_path / "clone"
    written(folder / "large_models/trainer.py", TRAINER)
    git(folder, "init")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "one")
    return folder


@pytest.fixture
def add_program(tmp_path: Path, clone: Path) -> Callable[[str], Path]:
    """Adds the clone with a shell script as its interpreter."""

    def add(text: str) -> Path:
        python = script(tmp_path / "python", text)
        clone_entry = clones.Clone(
            name="mezo", path=str(clone), python=str(python), commit=clones.commit_of(clone), versions=VERSIONS
        )
        clones.save({"mezo": clone_entry})
        return python

    return add


def says(**answer: Any) -> str:
    return f"cat <<'END'\n{json.dumps(answer)}\nEND"


FACTS = says(kind="facts", versions=VERSIONS, threads=1)
BEGUN = f"{FACTS}\n{says(kind='ready')}\nread x"
DONE = f"{says(kind='done', window=[0, 1], memory={})}\nread x"


@pytest.mark.slow
def test_a_program_takes_the_engines_steps_in_a_process_of_its_own(clone: Path, tmp_path: Path) -> None:
    """This interpreter's transformers are the program's here, so that nothing may differ in a bit."""
    (scratch := tmp_path / "scratch").mkdir()
    clones.save({"mezo": added("mezo", clone, Path(sys.executable), scratch)})
    ours, theirs = measured(SPEC.replace(program="zobench")), author_cell.run(SPEC)
    assert (theirs.outcome, theirs.reason) in ((Outcome.OK, ""), (Outcome.CONTAMINATED, theirs.reason))
    for name in ("loss", "projected_grad"):
        assert theirs.samples[name] == ours.samples[name]
        assert theirs.warmup[name] == ours.warmup[name]
    assert len(set(ours.samples["loss"])) == SPEC.steps
    assert all(seconds and seconds > 0 for seconds in theirs.samples["step_seconds"])
    commit = clones.commit_of(clone)
    assert theirs.environment.program.startswith(f"mezo {commit}, torch ")
    assert theirs.environment.versions.keys() == VERSIONS.keys()
    assert theirs.environment.machine == ours.environment.machine
    rise = theirs.memory["host_rss_peak_bytes"] - theirs.memory["host_rss_baseline_bytes"]  # type: ignore[operator]
    assert theirs.memory["device_peak_bytes"] == rise > 500_000  # the weights are 0.4 MB
    if sys.platform == "linux":
        assert theirs.power["own_cpu_cores"] > 0
    assert Result.from_dict(json.loads(json.dumps(theirs.to_dict()))).to_dict() == theirs.to_dict()
    assert is_current(theirs)


@pytest.mark.parametrize(
    ("script", "outcome", "reason"),
    [
        ("echo boom >&2; exit 3", Outcome.FAILED, "process ended with exit code 3, and the last that it said is: boom"),
        ("kill -KILL $$", Outcome.FAILED, "mezo's process was ended by SIGKILL"),
        ("sleep 60 & echo hello", Outcome.FAILED, r"mezo must answer in lines of JSON, but said 'hello\n'"),
        (f"{BEGUN}\n{says(kind='step', loss=1)}", Outcome.FAILED, "KeyError: 'step_seconds'"),
        (f"{BEGUN}\n{DONE}", Outcome.FAILED, "mezo must take the steps that it is asked for, but took 0"),
        (says(kind="error", type="MemoryError", text="x", trace="t"), Outcome.OOM, "host memory ran out: mezo: x"),
        (says(kind="error", type="RuntimeError", text="can't allocate memory", trace="t"), Outcome.OOM, "host memory"),
    ],
)  # fmt: skip
def test_what_a_program_does_is_the_cells_outcome(add_program: Any, script: str, outcome: Outcome, reason: str) -> None:
    add_program(script)
    began = time.monotonic()
    result = author_cell.run(SPEC)
    assert result.outcome is outcome
    assert reason in result.reason
    assert time.monotonic() - began < 50, "what it has started is not waited for"
    assert "\n" not in result.reason
    text = f"mezo {clones.load()['mezo'].commit}, torch 2.1.0, transformers 4.28.1, Python 3.9.18"
    assert result.environment.program == text


def test_a_program_whose_environment_was_changed_since_is_refused(add_program: Any) -> None:
    add_program(
        f"{says(kind='facts', versions={**VERSIONS, 'torch': '2.9.0'}, threads=1)}\n{says(kind='ready')}\nread x"
    )
    result = author_cell.run(SPEC)
    assert result.outcome is Outcome.FAILED
    assert "which had torch 2.1.0, but " in result.reason
    assert "has torch 2.9.0; add it again" in result.reason


def test_a_program_that_ends_after_a_step_keeps_it_and_one_that_stops_in_time_is_partial(add_program: Any) -> None:
    step = says(kind="step", step_seconds=0.5, loss=4.0, projected_grad=1.0)
    add_program(f"{BEGUN}\n{step}\n{step}")
    crashed = author_cell.run(SPEC)
    assert (crashed.outcome, crashed.samples["loss"], crashed.warmup["loss"]) == (Outcome.FAILED, [4.0], [4.0])
    add_program(f"{BEGUN}\n{step}\n{step}\n{DONE}")
    ended = author_cell.run(SPEC)
    assert (ended.outcome, ended.partial, ended.samples["loss"]) == (Outcome.OK, True, [4.0])
    assert "partial: 1 of 3 steps, because the time it was given was used up" in ended.warnings


@pytest.mark.skipif(sys.platform != "linux", reason="needs process groups and /proc")
def test_a_program_that_hangs_is_ended_with_its_cell(add_program, tmp_path, monkeypatch) -> None:
    """The clock leaps once it hangs."""
    pid = tmp_path / "pid"
    add_program(f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 1000")
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 1000 * pid.exists())
    monkeypatch.setattr(process, "time", clock)
    result = run_in_process(SPEC, timeout=900.0)
    assert (result.outcome, result.reason) == (Outcome.TIMEOUT, "the cell took longer than the 900 s it was given")
    assert gone(int(pid.read_text()))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"engine": "offload", "tier": "disk"}, "`program=mezo` needs engine=resident, but got engine=offload;"),
        ({"model": "llama-tiny"}, "`program=mezo` needs a model of type opt, but llama-tiny is of type llama;"),
        ({"program": "zo-llm"}, "`program=zo-llm` needs weight_decay=0.0, but got weight_decay=0.1; ZO-Bench/ZO-LLM"),
        ({"program": "zo2", "engine": "offload", "tier": "disk"}, "`program=zo2` needs device=cuda, but got device="),
    ],
)  # fmt: skip
def test_what_a_program_cannot_do_is_refused_in_one_line(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match="program=") as caught:
        programs.check(SPEC.replace(**changes))
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)


def test_a_program_that_is_not_here_as_it_was_added_is_refused_and_a_plan_skips_its_cells(
    add_program: Any, clone: Path, tmp_path: Path
) -> None:
    def refused(text: str) -> None:
        with pytest.raises(ValueError, match=text):
            programs.check(SPEC)
        room = plan.Limits(device_bytes=None, host_bytes=24 << 30, disk_bytes=1 << 40)
        (step,) = plan.make([SPEC], Store(tmp_path / "results"), "cpu-2c-4f2a91", RATES, room, ())
        assert step.action == "skip"
        assert text in step.reason

    refused("but none was added; zobench program add mezo --path CLONE --python ENV/bin/python")
    python = add_program("exit 1")
    programs.check(SPEC)
    facts = Facts(plug_ins={"program": authors.origin("mezo")})
    first, result = clones.commit_of(clone), Result(spec=SPEC, outcome=Outcome.OK, environment=facts)
    assert is_current(result)
    (added := clone / "large_models/mine.py").write_text("new = True\n")
    refused(f"must be at commit {first}, at which it was added, but")
    new = clones.commit_of(clone)
    added.write_text("new = False\n")
    assert new != clones.commit_of(clone)
    added.unlink()
    written(clone / "large_models/__pycache__/mine.cpython-311.pyc", "x")
    assert clones.commit_of(clone) == first
    (clone / "large_models/trainer.py").write_text("changed = True\n")
    refused(f"must be at commit {first}, at which it was added, but")
    changed = clones.commit_of(clone)
    assert changed.startswith(f"{first}+")
    git(clone, "commit", "-am", "two")
    assert len({first, changed, clones.commit_of(clone)}) == 3
    refused(f"must be at commit {first}, at which it was added, but")
    add_program("exit 1")
    programs.check(SPEC)
    assert not is_current(result), "measured by another commit"
    python.unlink()
    refused("needs the Python that it was added with, but")


def test_a_program_is_checked_before_it_is_added(clone: Path, tmp_path: Path) -> None:
    this_python, python = tmp_path / "clone", Path(sys.executable)

    def refused(text: str, name: str = "mezo", path: Path = this_python, interpreter: Path = python) -> None:
        with pytest.raises(ValueError, match=text):
            added(name, path, interpreter, tmp_path)

    refused("unknown program 'meso'; did you mean mezo?", name="meso")
    refused("`--path` must be a clone of liangyuwang/zo2, but .* has no zo2/__init__.py", name="zo2")
    refused("`--python` must be the interpreter of mezo's environment, but", interpreter=tmp_path / "nothing")
    (clone / "large_models/trainer.py").write_text("import sklearn_of_old\n")
    refused("`--python` must be able to import princeton-nlp/MeZO, but mezo: ModuleNotFoundError: No module named")
    written(tmp_path / "bare" / "large_models/trainer.py", "")
    refused("a program must be a git checkout, but in .*bare git says:", path=tmp_path / "bare")


@pytest.mark.slow
def test_the_command_adds_a_program(clone: Path, tmp_path: Path) -> None:
    python = script(tmp_path / "python", FACTS)
    ((_, done, _),) = commands(tmp_path, f"program add mezo --path {clone} --python {python}")
    commit = clones.commit_of(clone)
    assert done.startswith(f"added: mezo {commit}, torch 2.1.0, transformers 4.28.1, Python 3.9.18\n")
    facts = {"name": "mezo", "path": str(clone), "python": str(python), "commit": commit, "versions": VERSIONS}
    assert clones.load() == {"mezo": clones.Clone(**facts)}
    for broken in ({"path": "p"}, "mezo"):
        clones.list_path().write_text(json.dumps({"mezo": broken}))
        with pytest.raises(ValueError, match="must list programs as `zobench program add` does, but "):
            clones.load()


def test_the_adapter_needs_an_old_python_and_nothing_of_zobench() -> None:
    tree = ast.parse(ADAPTER.read_text(), feature_version=(3, 8))
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert set(names) <= sys.stdlib_module_names
    assert "zip(" not in ADAPTER.read_text(), "its strict= is of Python 3.10"


HERE = clones.load()
"""What was added on this machine, before the tests look elsewhere."""


@pytest.fixture
def real(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if name not in HERE:
        pytest.skip(f"{name} was not added here: zobench program add {name} --path CLONE --python ENV/bin/python")
    clones.save(HERE)
    return name


@pytest.mark.parametrize("real", ["mezo", "zo-llm"], indirect=True)
def test_the_programs_themselves_have_the_engines_losses(real: str) -> None:
    """To a few roundings of float32: their transformers and torch are others."""
    spec = SPEC.replace(program=real, weight_decay=0.0, steps=6, seq_len=64)
    ours, theirs = measured(spec.replace(program="zobench")), author_cell.run(spec)
    assert theirs.outcome in (Outcome.OK, Outcome.CONTAMINATED), theirs.reason
    losses = [float(loss or 0.0) for loss in ours.samples["loss"]]
    assert theirs.samples["loss"] == pytest.approx(losses, abs=5e-6)
    assert max(losses) - min(losses) > 1e-3
    assert theirs.environment.versions.get("transformers") == HERE[real].versions["transformers"]
