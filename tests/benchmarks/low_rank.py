"""A LOZO step beside two bare forwards (one on the doubled batch) and beside counter noise's step, in turn.

``python -m tests.benchmarks.low_rank OPT-125M 256 20`` prints medians of 20 interleaved rounds, and their ratios.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable

import torch

from zobench import Batch, Engine, EngineConfig, kernels, models
from zobench.engine.factors import LowRank
from zobench.methods import ZOSGD
from zobench.methods.lozo import LOZO
from zobench.models.weights import RandomWeights, materialise


def steps(name: str, tokens: int, interval: int) -> dict[str, Callable[[], object]]:
    """What is timed: each call is one step, or one forward of the doubled batch."""
    ids = torch.randint(5, 1000, (1, tokens), generator=torch.Generator().manual_seed(0))
    batch, doubled = Batch(ids, ids), ids.repeat(2, 1)
    bare = models.build(name, "fp32")
    materialise(bare, RandomWeights(bare, 0), "cpu")
    bare.eval()

    @torch.inference_mode()
    def forward() -> None:
        bare(input_ids=doubled, labels=doubled, use_cache=False).loss.item()

    def step(method: ZOSGD, directions: LowRank | None) -> Callable[[], object]:
        model = models.build(name, "fp32")
        config = EngineConfig(placement="resident", noise="counter")
        engine = Engine(model, config, weights=RandomWeights(model, 0), directions=directions)
        return lambda: method.step(engine, batch)

    return {
        "two bare forwards": forward,
        "lozo": step(LOZO(lr=1e-7, interval=interval), LowRank(2)),
        "zo-sgd, counter noise": step(ZOSGD(lr=1e-7), None),
    }


def main(name: str, tokens: int, rounds: int, interval: int = 50) -> None:
    """Every round runs each once, in an order that turns."""
    kernels.prepare("cpu")
    timed = steps(name, tokens, interval)
    seconds: dict[str, list[float]] = {key: [] for key in timed}
    orders = itertools.cycle(itertools.permutations(timed))
    for number in range(rounds + 1):
        for key in next(orders):
            begin = time.perf_counter()
            timed[key]()
            if number:
                seconds[key].append(time.perf_counter() - begin)
    median = {key: statistics.median(times) for key, times in seconds.items()}
    for key, value in median.items():
        print(f"{name}, {tokens} tokens, {key}: median {value:.4f} s, least {min(seconds[key]):.4f} s of {rounds}")
    bare, lozo, counter = median.values()
    print(f"bare / lozo {bare / lozo:.3f} (goal 0.9), counter / lozo {counter / lozo:.3f} (goal 1.2 to 256 tokens)")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
