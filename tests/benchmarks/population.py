"""A population of 64 directions of rank 1 in one forward, beside the same rows without directions, in turn.

``python -m tests.benchmarks.population OPT-125M 16 20`` has rows of 16 tokens and prints medians of 20 interleaved
rounds, and their ratios: losses without directions are the same engine's at W, and transformers' own of all rows.
"""

import itertools
import statistics
import sys
import time
from collections.abc import Callable

import torch

from zobench import Batch, Engine, EngineConfig, kernels, models
from zobench.engine import Point
from zobench.engine.directions.factors import IndependentLowRank
from zobench.methods.eggroll import less_loss
from zobench.models.weights import RandomWeights, materialise

MEMBERS, SIGMA = 64, 1e-3


def steps(name: str, tokens: int, rank: int = 1) -> dict[str, Callable[[], object]]:
    """What is timed: each call is one forward of as many rows as there are members."""
    ids = torch.randint(5, 1000, (MEMBERS, tokens), generator=torch.Generator().manual_seed(0))
    batch = Batch(ids, ids)
    rows = [batch.shard(member, MEMBERS) for member in range(MEMBERS)]
    bare = models.build(name, "fp32")
    materialise(bare, RandomWeights(bare, 0), "cpu")
    bare.eval()

    @torch.inference_mode()
    def forward() -> None:
        bare(input_ids=ids, labels=ids, use_cache=False).loss.item()

    model = models.build(name, "fp32")
    config = EngineConfig(placement="resident", noise="counter")
    engine = Engine(model, config, weights=RandomWeights(model, 0), directions=IndependentLowRank(rank))
    pairs = [Point(seed, scale) for seed in range(MEMBERS // 2) for scale in (SIGMA, -SIGMA)]
    own = [Point(seed, SIGMA) for seed in range(MEMBERS)]
    return {
        "transformers' forward": forward,
        "the same rows at W": lambda: engine.fitness(less_loss, rows, [Point()] * MEMBERS),
        "64 directions": lambda: engine.fitness(less_loss, rows, own),
        "32 antithetic pairs": lambda: engine.fitness(less_loss, rows, pairs),
    }


def main(name: str, tokens: int, rounds: int, rank: int = 1) -> None:
    """Every round runs each once, in an order that turns."""
    kernels.prepare("cpu")
    timed = steps(name, tokens, rank)
    seconds: dict[str, list[float]] = {key: [] for key in timed}
    orders = itertools.cycle(itertools.permutations(timed))
    for number in range(rounds + 1):
        for key in next(orders):
            begin = time.perf_counter()
            timed[key]()
            if number:
                seconds[key].append(time.perf_counter() - begin)
    for key, times in seconds.items():
        middle = statistics.median(times)
        print(f"{name}, {MEMBERS} rows of {tokens}, {key}: median {middle:.4f} s, least {min(times):.4f} s of {rounds}")
    for key in list(timed)[2:]:
        ratios = [
            statistics.median(a / b for a, b in zip(seconds[key], seconds[other], strict=True))
            for other in list(timed)[:2]
        ]
        print(f"{key} / transformers' forward {ratios[0]:.3f} (goal 1.3), / the same rows at W {ratios[1]:.3f}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
