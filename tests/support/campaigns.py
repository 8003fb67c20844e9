"""A campaign that ran on a machine of that size: synthetic results of all its runs, as its rounds would store them."""

import functools
import json
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tests.support.stores import ENVIRONMENT
from zobench import models, recipes
from zobench.cost import Rates
from zobench.cost.gpu import predict
from zobench.cost.hardware import Gpu
from zobench.cost.local import steps_of
from zobench.execute.plan import Limits
from zobench.recipes import campaign as campaigns
from zobench.recipes.campaign import Campaign, PartOn
from zobench.result import Facts, Outcome, Result, Round
from zobench.result.repeats import folded
from zobench.runspec import RunSpec
from zobench.runspec.kinds import ENGINES, WIDTHS

GB = 10**9
ROOM = Limits(device_bytes=None, host_bytes=24 * GB, disk_bytes=60 * GB)
"""Two cores with 24 GB, and 60 GB of free disk."""
IDLE = Path(__file__).with_name("idle_rates.json")
"""What `zobench doctor` measured on two idle cores of an EPYC with AVX-512 for bf16."""
GPU = {"cores": 16, "cpu": "Intel Xeon", "memory_gib": 128, "gpus": [{"name": "NVIDIA H100 PCIe", "memory_mib": 81559}]}

HEAD = 'title = "Mine"\ndevice = "cpu"\ntimeout = "10m"\nrepeats = 3\n'
MATRIX = """title = "A matrix"
budget = "1m"
[base]
model = "opt-tiny"
seq_len = 32
[axes]
seed = [0, 1]
[[include]]
seed = 5
[on.cpu.base]
steps = 4
"""
PART = '[[parts]]\nname = "{}"\nmatrix = "mine"\nreason = "why"\n'
"""A campaign file's head, a matrix of three cells, and a part that is that matrix."""


def shipped(name: str) -> Campaign:
    return campaigns.load(recipes.find("campaigns", name))


@functools.cache
def rates() -> Rates:
    """Those of a machine with two cores that nobody else used."""
    return Rates.of(json.loads(IDLE.read_text()))


def environment(device: str) -> Facts:
    return ENVIRONMENT if device == "cpu" else replace(ENVIRONMENT, machine="h100-16c-abcdef", hardware=GPU)


def seconds_on(on: PartOn, gpu: Gpu) -> dict[RunSpec, float]:
    """The cells of a part that fit one ``gpu`` in a host of 128 GiB, and what each is predicted to take there, from its
    process's start to its end, without evaluations and checkpoints. A start with CUDA and the rate at which memory is
    filled that is registered for a GPU are guessed."""
    seconds = {}
    for spec in on.cells:
        prediction = predict(spec, gpu)
        if spec.gpus == 1 and prediction.fits and prediction.host_bytes <= 127 << 30:
            filled = models.parameter_count(*models.variant(spec)) * WIDTHS[spec.dtype]
            filled = prediction.host_bytes if ENGINES[spec.engine].is_streamed else filled
            seconds[spec] = 15.0 + filled / 0.75e9 + steps_of(spec) * prediction.step_seconds
    return seconds


def run(spec: RunSpec, round_: Round, luck: random.Random) -> Result:
    """A run of ``spec`` that ended ok, with all that its fields ask for."""
    slow = 1.0 + spec.batch_size * spec.seq_len / 1000
    parts = {name: [1.0, 1.1] for name in ("upload_seconds", "offload_seconds")} if spec.parts else {}
    if spec.checkpoint != "none":
        parts |= {"checkpoint_stall_seconds": [0.1], "checkpoint_seconds": [2.0]}
    saved = [["save", "save", 0, 0.0, 0.1]] if spec.checkpoint != "none" else []
    rows = [["upload", "upload", 0, 0.0, 0.1], ["compute", "compute", 0, 0.1, 0.3]] if spec.engine == "offload" else []
    return Result(
        spec=spec, outcome=Outcome.OK, environment=environment(spec.device.partition(":")[0]), parts=parts,
        samples={"step_seconds": [slow * luck.uniform(0.99, 1.01) for _ in range(spec.steps)]},
        memory={"device_peak_bytes": 2**30, "checkpoint_bytes": 0}, timeline=rows + saved, round=round_,
    )  # fmt: skip


def results(parts: Iterable[tuple[PartOn, Iterable[RunSpec]]]) -> list[Result]:
    """One result with its repeats for each cell of each part that ran there: a file for each cell and round."""
    luck, runs = random.Random(7), []
    for place, (on, cells) in enumerate(parts):
        ran = list(cells)
        for number in on.rounds:
            began = 1e9 + 1e4 * place + 100.0 * number
            rounds = [Round(number=number, began=began, place=i, cells=len(ran), seed=3) for i in range(len(ran))]
            runs += [run(spec, round_number, luck) for spec, round_number in zip(ran, rounds, strict=True)]
    return folded(runs)
