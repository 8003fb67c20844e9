"""The last lines of a sweep: the comparison that its reader came for, and the next command."""

import dataclasses
from typing import Any

from zobench.result import Facts, Outcome, Result, Round
from zobench.result.repeats import folded
from zobench.runspec import RunSpec
from zobench.session.closing import gains


def measured(seconds: float, peak: int | None, steps: int = 8, **changes: Any) -> Result:
    spec = RunSpec(**{"model": "OPT-125M", "seq_len": 32, **changes}).resolve("cpu")
    samples: dict[str, list[float | None]] = {"step_seconds": [seconds * (1 + 0.001 * n) for n in range(steps)]}
    return Result(spec=spec, outcome=Outcome.OK, samples=samples, memory={"device_peak_bytes": peak})


def test_the_fastest_cell_stands_against_mezos_own_way_at_the_same_work() -> None:
    plain = measured(4.0, 1000)
    fast = measured(1.0, 250, engine="offload", tier="disk", noise="counter")
    slower, longer = measured(2.0, 1, engine="offload"), measured(0.1, 1, engine="offload", seq_len=16)
    assert gains([plain, slower, fast, longer]) == [
        "OPT-125M fp32: offload/disk counter has 4.00x (95 % 3.99 to 4.01) the tokens/s of MeZO's own way in 0.25 of "
        "its memory (measured here)"
    ]
    assert gains([plain, measured(1.0, None, noise="counter")])[0].endswith(" of MeZO's own way (measured here)")
    assert gains([plain, measured(5.0, 1, engine="offload")]) == []  # nothing is faster
    assert gains([fast, longer]) == []
    for other in ({"compile": True}, {"method": "zo-adam"}, {"gpus": 2, "parallel": "ddp", "batch_size": 2}):
        same = {"batch_size": other.get("batch_size", 1), "method": other.get("method", "zo-sgd")}
        assert gains([measured(4.0, 1000, **other), measured(1.0, 250, noise="counter", **same)]) == []  # not MeZO's
    assert gains([plain, measured(1.0, 250, lr=1e-3)]) == []
    few = [measured(4.0, 1000, 2), measured(3.0, 250, 2, engine="offload")]
    assert gains(few) == []  # so few steps show no difference
    loud = dataclasses.replace(fast, warnings=["other processes kept 1.0 cores busy meanwhile; expect slower steps"])
    assert gains([plain, loud])[0].endswith("(measured here, while others were busy)")


def test_of_repeats_the_rounds_are_asked_and_not_the_steps_of_one_process() -> None:
    def rounds(speeds: list[float], **changes: Any) -> Result:
        when = [Round(number=n, began=float(n), place=0, cells=2, seed=0) for n in range(len(speeds))]
        return folded(
            dataclasses.replace(measured(speed, 1000, **changes), round=moment, environment=Facts(machine="m"))
            for speed, moment in zip(speeds, when, strict=True)
        )[0]

    plain = rounds([4.0, 1.0, 4.0])
    assert len(gains([plain.runs[0], rounds([1.0, 4.0, 1.0], noise="counter").runs[0]])) == 0  # one round
    assert gains([plain, rounds([1.0, 4.0, 1.0], noise="counter")]) == []
    (line,) = gains([plain, rounds([2.0, 0.5, 2.0], noise="counter")])
    assert "counter has 2.00x (95 % 2.00 to 2.00) the tokens/s" in line
    early = rounds([1.0, 2.0, 8.0, 9.0, 10.0, 11.0])  # its last rounds had no partner
    (line,) = gains([early, rounds([0.5, 1.0, 4.0], noise="counter")])
    assert "counter has 2.00x (95 % 2.00 to 2.00) the tokens/s" in line
