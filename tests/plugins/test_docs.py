"""Every block of docs/extending.md, as one package outside the repository: it works as the page says."""

import json
from pathlib import Path

import pytest

from tests.support.plugin import blocks, commands, package, python, zobench
from zobench.runspec import RunSpec

LISTS = {
    "methods": ("scaled-sign", "capped"), "schemes": ("ia3",), "tasks": ("colours",), "metrics": ("loss_spread",),
    "models": ("my-llama", "my-qwen"), "programs": ("dry",),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the page as pip leaves it, and a test module of its own."""
    folder = tmp_path_factory.mktemp("site")
    package(folder)
    return folder


@pytest.mark.slow
def test_each_is_listed_with_its_package_and_only_a_methods_costs_are_asked_of_it(folder: Path, tmp_path: Path) -> None:
    package(tmp_path).write_text("raise RuntimeError('imported')\n")
    for (kind, names), (code, out, _) in zip(
        LISTS.items(), commands(tmp_path, *(f"list {kind}" for kind in LISTS)), strict=True
    ):
        assert code == 0
        for name in names:
            if kind == "methods":
                message = f"the method '{name}' of the package my-zo must be importable, but RuntimeError: imported"
                assert message in " ".join(out.split())
            else:
                assert [name, "from", "my-zo", "1.0"] in [line.split() for line in out.splitlines()]
    ((_, out, _),) = commands(folder, "list methods")
    message = "scaled-sign 2 0 w -= scale * lr * sign(ghat); options.scale=1.0; from my-zo"
    assert message in " ".join(out.split())


FAILS = {
    "run --model opt-tiny --set method=scaled-sign": "method 'scaled-sign'",
    "table mine.toml": "metric 'loss_spread'",
    "run --model my-llama": "model 'my-llama'",
    "run --model opt-tiny --set program=dry": "program 'dry'",
}
TABLE = """
title = "Mine"
columns = [ { header = "All" } ]
metrics = [ { name = "loss_spread", header = "Spread", format = ".3f", better = "lower" } ]
[rows.product]
model = ["opt-tiny"]
"""


def test_one_that_cannot_be_imported_is_a_line_that_names_it(tmp_path: Path) -> None:
    package(tmp_path).write_text("import nowhere_at_all\n")
    (tmp_path / "mine.toml").write_text(TABLE)
    for (code, out, err), (line, what) in zip(commands(tmp_path, *FAILS), FAILS.items(), strict=True):
        message = f"the {what} of the package my-zo must be importable, but ModuleNotFoundError: No module named "
        assert (code, out) == (2, ""), line
        assert message in err.splitlines()[-1], line


@pytest.mark.slow
def test_the_commands_of_the_page_run(folder: Path) -> None:
    (text,) = blocks("console")
    command = text.removeprefix("$ zobench ").split()
    result = json.loads(zobench(folder, *command, "--set", "steps=2", "--device", "cpu", "--json", "-").stdout)
    assert (result["outcome"], result["spec"]["options"]) == ("ok", {"scale": 0.5})
    command = ["run", "--model", "my-llama", "--set", "program=dry", "--set", "seq_len=16", "--set", "steps=2"]
    result = json.loads(zobench(folder, *command, "--json", "-", "--device", "cpu").stdout)
    assert result["environment"]["program"] == "dry of my-zo 1.0"
    assert (result["spec"]["program"], result["samples"]) == ("dry", {"step_seconds": [0.5, 0.5]})
    assert result["environment"]["machine"]
    plain = {"model": "opt-tiny", "seq_len": 16}
    assert RunSpec(**plain, program="zobench").hash == RunSpec(**plain).hash


REST = """
import io, json, types
from pathlib import Path
import my_zo
from zobench import models, programs
from zobench.runspec import RunSpec
fields = dict(model="my-qwen", seq_len=16, steps=2, noise="counter", queries=4, lr=1e-7)
capped, plain = (
    programs.run(RunSpec(method=method, **fields).resolve("cpu")).samples["loss"] for method in ("capped", "eggroll")
)
assert capped == [4.0, 4.0] and min(plain) > 4, (capped, plain)  # random weights: every member's loss is above the cap
members = types.SimpleNamespace(losses=lambda batches: [3.0, 9.0])
assert my_zo.capped_loss(members, ()) == [-3.0, -4.0]
plain = dict(model="opt-tiny", scheme="ia3", seq_len=16, steps=3, lr=1e-2, eps=1e-2)
resident, offloaded = (
    programs.run(RunSpec(engine=engine, **plain).resolve("cpu")).samples["loss"] for engine in ("resident", "offload")
)
assert resident == offloaded and len(set(resident)) == 3, (resident, offloaded)
from zobench.cost.sizes import adapter
from zobench.schemes import apply
spec = RunSpec(**plain).resolve("cpu")
import peft, torch
from zobench import Engine, EngineConfig, RandomWeights, methods
from zobench.data.batch import Batch
tuned, config = models.build("opt-tiny", "fp32"), EngineConfig(placement="resident")
base = RandomWeights(tuned, 0)
scheme = apply(spec, tuned)
block = sum(p.numel() for name, p in tuned.named_parameters() if "layers.0" in name and p.requires_grad)
assert adapter(spec) == (block, 0), (adapter(spec), block)

with Engine(tuned, config, weights=scheme.weights(base, config), drive=scheme.drive) as engine:
    ids = torch.arange(16).reshape(2, 8)
    methods.ZOSGD(lr=1.0, eps=1e-1, seed=0).step(engine, Batch(ids, ids))
    kept = dict(engine.named_tensors())
    scheme.save("adapter", engine.named_tensors())
plain_model = models.build("opt-tiny", "fp32").to_empty(device="cpu")
theirs = dict(peft.PeftModel.from_pretrained(plain_model, "adapter").named_parameters())
mine = [name for name in kept if "ia3_l" in name]
assert len(mine) == 9 and not all((kept[name] == 1).all() for name in mine)
assert all(torch.equal(theirs["base_model.model." + name], kept[name]) for name in mine)
logger = my_zo.Gradients()
step = types.SimpleNamespace(step=1, g=0.5)
logger.on_start(types.SimpleNamespace(folder=Path("."), steps=[step]))
logger.on_step(types.SimpleNamespace(step=2, g=-1.5))
logger.close()
assert Path("gradients.csv").read_text() == "1,0.5\\n2,-1.5\\n"
print("done")
"""


@pytest.mark.slow
def test_its_family_has_the_models_sizes_its_reward_trains_and_its_logger_writes(folder: Path) -> None:
    assert python(folder, "-c", REST).stdout.endswith("done\n")


@pytest.mark.slow
def test_its_method_passes_the_suite_of_methods(folder: Path) -> None:
    done = python(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_zo.py")
    assert done.stdout.count(".") > 5
    assert "100%" in done.stdout
