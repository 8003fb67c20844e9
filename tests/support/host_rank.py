"""One rank of a test of shared host memory: runs every case of a JSON list; writes what it saw to FILE.*.RANK.*."""

import ctypes
import json
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from transformers import OPTConfig, OPTForCausalLM

from tests.support import normals
from tests.support.parity import batches_of, engine_of
from zobench import ZOSGD, Engine, EngineConfig, RunSpec
from zobench.engine.base import Position
from zobench.engine.weights.tiers import allocate
from zobench.models import weights
from zobench.parallel import hosts
from zobench.parallel.engine import ParallelEngine
from zobench.parallel.world import join, world_of

EXAMPLES = 3
"""Rows of a batch: no two ranks can cut them, so that each rank's losses are those of a single process."""


def method(spec):
    return ZOSGD(lr=spec.lr, eps=spec.eps, seed=spec.seed)


def alone(spec):
    """The spec whose batches and method these ranks share."""
    return spec.replace(gpus=1, parallel="none", transfers="auto", batch_size=EXAMPLES)


def steps_of(case, engine):
    spec = alone(RunSpec(**case["spec"]))
    stepped = method(spec)
    return [stepped.step(engine, batch) for batch in batches_of(spec, spec.steps)]


def planted(kind):
    """What forgets to wait for a count of another rank."""

    class Hasty(hosts.Counts):
        def wait(self, what, block, count=1, rank=None):
            if what != kind:
                super().wait(what, block, count, rank)

    return Hasty


def delayed(delays, seed):
    """A tier that sleeps before a transfer: up to ``delays[name]`` seconds before each upload or offload."""
    chance = random.Random(seed)

    class Slow(hosts.SharedTier):
        def upload(self, block, slot, first=0):
            time.sleep(delays.get("upload", 0) * chance.random())
            super().upload(block, slot, first)

        def offload(self, block, slot, first=0):
            time.sleep(delays.get("offload", 0) * chance.random())
            super().offload(block, slot, first)

    return Slow


def run(case, number, out, device):
    spec = RunSpec(**case["spec"])
    world = world_of(spec, device)
    hosts.SharedTier = delayed(case.get("delays", {}).get(str(world.rank), {}), number * 8 + world.rank)
    hosts.Counts = planted(case["planted"]) if "planted" in case else Counts
    options = {"hosts": hosts.hosts_for(spec, world)}
    engine = engine_of(spec.model, spec.dtype, options=options, device=device, **case["engine"])
    with ParallelEngine(engine, world) as parallel:
        steps = steps_of(case, parallel)
        save_file(dict(parallel.named_tensors()), f"{out}.{number}.{world.rank}.safetensors")
    return {"losses": [step.loss for step in steps], "gs": [step.projected_grad for step in steps]}


class Kept:
    """What the ranks have saved, each its own part of every block: a :class:`zobench.engine.interface.Start`."""

    def __init__(self, files, positions):
        self._parts, self._positions = [load_file(file) for file in files], positions

    def fill(self, unit, out):
        if unit not in self._parts[0]:
            return False
        whole = torch.cat([part[unit] for part in self._parts])
        out.copy_(whole[: out.numel()])
        return True

    def position(self, unit):
        return self._positions.get(unit, Position())


def resumed(case, number, out, device):
    """Whether an engine that starts from what all ranks have read of another is that engine, and knows it."""
    hosts.SharedTier, hosts.Counts = Tier, Counts
    spec = RunSpec(**case["spec"])
    world = world_of(spec, device)

    def build(start=None):
        options = {"hosts": hosts.hosts_for(spec, world), "start": start}
        return engine_of(spec.model, spec.dtype, options=options, **case["engine"])

    with build() as engine, ParallelEngine(engine, world) as parallel:
        steps_of(case, parallel)
        engine.flush()
        before, parts, refused = dict(engine.named_tensors()), {}, 0
        for unit in engine.blocks[1:]:  # the first is left as it was
            first, last = hosts.part_of(engine.rest_bytes(unit), world.local_rank, world.local_ranks)
            parts[unit.name] = allocate(last - first)[: last - first]
            engine.read(unit, parts[unit.name], first)
            try:
                engine.read(unit, parts[unit.name], first + 4096)
            except ValueError as error:
                refused += "must peek at its own part" in str(error)
        positions = {unit.name: engine.position(unit) for unit in engine.blocks[1:]}
        left = {item.name for item in engine.blocks[0].fields}
        blocks = {item.name for unit in engine.blocks for item in unit.fields} - left
        asked = len(parts)
    save_file(parts, f"{out}.{number}.{world.rank}.kept")
    world.barrier()
    files = [f"{out}.{number}.{rank}.kept" for rank in range(spec.gpus)]
    with build(Kept(files, positions)) as engine:
        after = dict(engine.named_tensors())
        return {
            "same": all(torch.equal(before[name], after[name]) for name in blocks),
            "first differs": any(not torch.equal(before[name], after[name]) for name in left),
            "changed": [unit.changed for unit in engine.blocks],
            "applied": [unit.applied for unit in engine.blocks],
            "refused": refused == asked,
        }


Tier, Counts = hosts.SharedTier, hosts.Counts


def private_bytes():
    """This process's memory without files, what is shared divided by who shares it."""
    ctypes.CDLL(None).malloc_trim(0)  # what is free is not in use
    rows = dict(line.split(":", 1) for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return {name: int(rows[f"Pss_{name}"].split()[0]) * 1024 for name in ("Anon", "Shmem")}


def warm_up(spec):
    """Takes two steps of a small model, so that what libraries keep at first use is there before the run."""
    with engine_of(noise="counter") as engine:
        stepped = method(spec)
        for batch in batches_of(spec.replace(model="opt-tiny"), 2):
            stepped.step(engine, batch)


def weigh(spec, world):
    """Bytes of a run that the blocks of its model dominate: before it was built, and after two steps."""
    config = OPTConfig(
        vocab_size=256, hidden_size=256, num_hidden_layers=40, ffn_dim=1024, num_attention_heads=4,
        max_position_embeddings=64, word_embed_proj_dim=256,
    )  # fmt: skip
    warm_up(spec)
    with torch.device("meta"):
        model = OPTForCausalLM(config)
    before = private_bytes()
    shared = hosts.hosts_for(spec, world) if world is not None else None
    engine = Engine(model, EngineConfig(noise="counter"), weights=weights.RandomWeights(model, 3), hosts=shared)
    with engine if world is None else ParallelEngine(engine, world) as used:
        if world is not None:
            world.barrier()
        stepped = method(spec)
        for batch in batches_of(spec.replace(model="opt-tiny"), 2):
            stepped.step(used, batch)
        used.drain()
        if world is not None:
            world.barrier()
        after = private_bytes()
        if world is not None:
            world.barrier()
    blocks = sum(parameter.numel() * 4 for parameter in model.model.decoder.layers.parameters())
    return {"blocks": blocks, "bytes": {name: after[name] - before[name] for name in after}}


def main():
    asked, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    spec = RunSpec(**asked["spec"])
    if spec.gpus == 1:
        Path(f"{out}.0.json").write_text(json.dumps([weigh(spec, None)]))
        return
    with join(spec) as world:
        if asked["cases"]:
            normals.draw_once()
            ways = {"run": run, "resumed": resumed}
            cases = enumerate(asked["cases"])
            results = [ways[case.get("way", "run")](case, number, out, world.device) for number, case in cases]
        else:
            results = [weigh(spec.replace(transfers=way), world) for way in ("whole", "sliced")]
        dist.barrier()
    Path(f"{out}.{world.rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
