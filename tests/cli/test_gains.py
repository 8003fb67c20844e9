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


def repeated(*speeds: float, peak: int | None = 1000, **changes: Any) -> Result:
    when = [Round(number=n, began=float(n), place=0, cells=2, seed=0) for n in range(len(speeds))]
    return folded(
        dataclasses.replace(measured(speed, peak, **changes), round=moment, environment=Facts(machine="m"))
        for speed, moment in zip(speeds, when, strict=True)
    )[0]


def test_the_fastest_cell_stands_against_mezos_own_way_at_the_same_work() -> None:
    plain = repeated(4.0, 4.0)
    fast = repeated(1.0, 1.0, peak=250, engine="offload", tier="disk", noise="counter")
    slower, longer = repeated(2.0, 2.0, engine="offload"), repeated(0.1, 0.1, engine="offload", seq_len=16)
    assert gains([plain, slower, fast, longer]) == [
        "found: OPT-125M fp32: offload/disk counter has 4.00x (95 % 4.00 to 4.00) the tokens/s of MeZO's own way in "
        "0.25 of its memory (the best of 2, measured here)"
    ]
    assert gains([plain, repeated(1.0, 1.0, peak=None, noise="counter")])[0].endswith("s own way (measured here)")
    assert gains([plain, repeated(5.0, 5.0, engine="offload")]) == []  # nothing is faster
    assert gains([fast, longer]) == []
    for other in ({"compile": True}, {"method": "zo-adam"}, {"gpus": 2, "parallel": "ddp", "batch_size": 2}):
        same = {"batch_size": other.get("batch_size", 1), "method": other.get("method", "zo-sgd")}
        assert gains([repeated(4.0, 4.0, **other), repeated(1.0, 1.0, noise="counter", **same)]) == []  # not MeZO's
    assert gains([plain, repeated(1.0, 1.0, lr=1e-3)]) == []


def test_one_process_and_a_busy_machine_claim_nothing_and_no_size_is_picked() -> None:
    plain, fast = measured(4.0, 1000), measured(1.0, 250, noise="counter")
    assert gains([plain, fast]) == [
        "seen, but no claim, as that takes rounds of undisturbed processes: OPT-125M fp32: counter had 4.00x "
        "the tokens/s of MeZO's own way (at 1 batch size); to claim it: --repeats 3"
    ]
    assert gains([plain, measured(5.0, 1, noise="counter")]) == []
    sizes = [repeated(4.0, 4.0), *(repeated(2.0, 2.0, batch_size=4, **way) for way in ({}, {"noise": "counter"}))]
    fast = repeated(1.0, 1.0, noise="counter")
    assert "counter has 1.00 to 4.00x (95 % 1.00 to 4.00) the tokens/s" in gains([*sizes, fast])[0]
    loud = dataclasses.replace(fast, warnings=["other processes kept 1.0 cores busy meanwhile; expect slower steps"])
    (line,) = gains([*sizes, loud])
    assert "no claim, as others were busy: OPT-125M fp32: counter had 1.00 to 4.00x the" in line
    assert line.endswith("(at 2 batch sizes); to claim it: --repeats 3, others idle")


def test_of_repeats_the_rounds_are_asked_and_not_the_steps_of_one_process() -> None:
    plain = repeated(4.0, 1.0, 4.0)
    (line,) = gains([plain.runs[0], repeated(1.0, 4.0, 1.0, noise="counter").runs[0]])
    assert "no claim" in line  # one round
    assert gains([plain, repeated(1.0, 4.0, 1.0, noise="counter")]) == []
    (line,) = gains([plain, repeated(2.0, 0.5, 2.0, noise="counter")])
    assert "counter has 2.00x (95 % 2.00 to 2.00) the tokens/s" in line
    early = repeated(1.0, 2.0, 8.0, 9.0, 10.0, 11.0)  # its last rounds had no partner
    (line,) = gains([early, repeated(0.5, 1.0, 4.0, noise="counter")])
    assert "counter has 2.00x (95 % 2.00 to 2.00) the tokens/s" in line
