"""One rank of a test: runs every case of a JSON list, and writes losses, g, weights and bytes sent to FILE.rank.pt."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.support import normals
from tests.support.parity import batches_of
from zobench import Engine, EngineConfig, RunSpec, methods, models
from zobench.models import weights
from zobench.parallel.engine import ParallelEngine
from zobench.parallel.world import group, join, world_of
from zobench.runspec.words import SIGNED


def engine(case, spec):
    model = models.build(spec.model, spec.dtype, case.get("tied"))
    start = weights.RandomWeights(model, 3)
    rule, thresholds = methods.rule(spec), methods.thresholds(spec, model, start)
    config = EngineConfig(**case["engine"], out_of_place=spec.parallel in SIGNED and not spec.exact)
    return Engine(model, config, weights=start, rule=rule, thresholds=thresholds)


def adds_up_to_what_is_gathered(world):
    """Whether an all_reduce, here Gloo's, gives the rows that are gathered."""
    row = torch.tensor([world.rank + 0.1, 1 / (3 + world.rank), 1e-300, -0.7], dtype=torch.float64)
    ranks = tuple(range(world.local_ranks))
    return torch.equal(replace(world, reducing=group(ranks, "gloo", "reduced")).gather(row), world.gather(row))


def main():
    cases, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    answers, sent = [], []
    normals.draw_once()
    with join(RunSpec(**cases[0]["spec"])) as first:
        rank, reduced = first.rank, adds_up_to_what_is_gathered(first)
        for number, case in enumerate(cases):
            spec = RunSpec(**case["spec"])
            world = world_of(spec, "cpu")
            with ParallelEngine(engine(case, spec), world) as parallel:
                stepped, steps = methods.make(spec), []
                for batch in batches_of(spec, spec.steps):
                    with world.traffic:
                        steps.append(stepped.step(parallel, batch))
                answers.append({"losses": [s.loss for s in steps], "gs": [s.projected_grad for s in steps]})
                sent.append(world.traffic.taken)
                save_file(dict(parallel.named_tensors()), f"{out}.{number}.{world.rank}.safetensors")
    interfaces = [os.environ[f"{library}_SOCKET_IFNAME"] for library in ("GLOO", "NCCL")]
    Path(f"{out}.{rank}.json").write_text(json.dumps([answers, sent, [*interfaces, reduced]]))


if __name__ == "__main__":
    main()
