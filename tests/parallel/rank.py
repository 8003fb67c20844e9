"""One rank of a test: runs every case of a JSON list, and writes losses, g, weights and bytes sent to FILE.rank.pt."""

import itertools
import json
import sys
from pathlib import Path

from safetensors.torch import save_file

from zobench import ZOSGD, Engine, EngineConfig, RunSpec, models, weights
from zobench.data.tokens import stream
from zobench.parallel import ParallelEngine, join
from zobench.parallel.world import world_of


def batches(spec, count):
    config = models.build_config(spec.model)
    return list(itertools.islice(stream(spec, config.vocab_size, config.pad_token_id), count))


def method(spec):
    return ZOSGD(lr=spec.lr, eps=spec.eps, seed=spec.seed, weight_decay=spec.weight_decay, queries=spec.queries)


def main():
    cases, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    told = []
    with join(RunSpec(**cases[0]["spec"])) as first:
        rank = first.rank
        for number, case in enumerate(cases):
            spec = RunSpec(**case["spec"])
            world = world_of(spec, "cpu")
            model = models.build(spec.model, spec.dtype, case.get("tied"))
            engine = Engine(model, EngineConfig(**case["engine"]), weights=weights.RandomWeights(model, 3))
            with ParallelEngine(engine, world) as parallel:
                stepped = method(spec)
                steps = [stepped.step(parallel, batch) for batch in batches(spec, spec.steps)]
                told.append({"losses": [s.loss for s in steps], "gs": [s.projected_grad for s in steps]})
                save_file(dict(parallel.named_tensors()), f"{out}.{number}.{world.rank}.safetensors")
    Path(f"{out}.{rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
