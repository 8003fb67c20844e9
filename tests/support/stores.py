"""Stores of many runs for tests: files as large and as varied as a cell of OPT-1.3B leaves."""

import itertools
from collections.abc import Iterator
from typing import Any

from tests.support.rates import CALIBRATION
from zobench.result import Facts, Outcome, Result
from zobench.runspec import RunSpec

MACHINE = "epyc-2c-fcab62"
ENVIRONMENT = Facts(
    machine=MACHINE,
    description="AMD EPYC, 2 cores, 24 GiB",
    hardware={"cores": 2, "cpu": "AMD EPYC", "gpus": [], "memory_gib": 24},
    software={"python": "3.11", "torch": "2.13.0", "transformers": "5.23.0", "zobench": "0.1.0"},
    source={"commit": "ee3ca2f17f60ae0b2c4b8e4dfce74c7e24d3e945", "dirty": False},
    versions=dict.fromkeys(("numpy", "python", "safetensors", "torch", "transformers", "triton"), "1.2.3"),
    cpu_flags=["avx2", "avx512"],
    calibration=CALIBRATION,
    memory_limit_bytes=24 << 30,
    notes=["NVML: not available (nvml shared library not found)"],
)
"""Of a machine without a GPU, as a sweep stores it."""
BLOCKS = 24
LANES = ("upload", "compute", "offload")
STEPS = 20
POINTS = 100
KINDS = tuple(
    itertools.product(
        ("OPT-125M", "OPT-350M", "OPT-1.3B", "OPT-2.7B", "OPT-6.7B", "Qwen3-1.7B"),
        ("fp32", "bf16"),
        (1, 2, 4),
        (512, 1024, 2048),
        ({"engine": "resident"}, {"engine": "offload"}, {"engine": "offload", "overlap": False}),
        ({}, {"noise": "counter"}),
    )
)


def specs() -> Iterator[RunSpec]:
    """Endless different specs, resolved for a CPU."""
    for number in itertools.count():
        seed, kind = divmod(number, len(KINDS))
        model, dtype, batch, tokens, engine, noise = KINDS[kind]
        sizes = {"dtype": dtype, "batch_size": batch, "seq_len": tokens, "seed": seed, "steps": STEPS}
        yield RunSpec(model=model, **sizes, **engine, **noise).resolve("cpu")


def run(spec: RunSpec, number: int = 0, **changes: Any) -> Result:
    """A finished run of ``spec`` with everything that a result can hold; ``number`` makes it different."""
    seconds = [0.8 + (number * 7 + step) % 13 / 97 for step in range(STEPS)]
    rows: list[list[Any]] = []
    for block in range(BLOCKS if spec.engine == "offload" else 0):
        begin = block / 31
        rows += [[lane, lane, block, begin + lag, begin + lag + 0.0123] for lag, lane in enumerate(LANES)]
    values: dict[str, Any] = {
        "spec": spec,
        "outcome": Outcome.OK,
        "environment": ENVIRONMENT,
        "samples": {"step_seconds": seconds, "loss": [2 + s / 3 for s in seconds], "projected_grad": seconds},
        "memory": {"device_peak_bytes": 21565440 + number, "host_rss_peak_bytes": 604545024, "pinned_bytes": 0},
        "power": {"energy_joules": None, "notes": [], "samples": 42, "sampler_overhead": 0.0023},
        "timeline": rows,
        "trace": {
            "seconds": [round(0.1003 * i, 3) for i in range(POINTS)],
            "rss_bytes": [604545024 + 4096 * i for i in range(POINTS)],
        },
    }
    return Result(**{**values, **changes})
