"""Labels beside one another: of an axis every value is told, the usual one too."""

from __future__ import annotations

from zobench.runspec import RunSpec, labels


def cell(**changes: object) -> RunSpec:
    return RunSpec(**{"model": "OPT-125M", **changes})  # type: ignore[arg-type]


def test_the_usual_value_of_an_axis_is_told_beside_the_others() -> None:
    assert labels([cell(seed=0), cell(seed=1)]) == [f"{cell().label} seed=0", cell(seed=1).label]
    wires = [cell(engine="offload", wire=wire) for wire in ("none", "fp16")]
    assert [label.split()[-1] for label in labels(wires)] == ["wire=none", "wire=fp16"]
    crossed = [cell(engine="offload", noise=noise, seed=seed) for noise in ("torch", "counter") for seed in (0, 1)]
    assert {"torch", "seed=0"} <= set(labels(crossed)[0].split())
    assert {"counter", "seed=1"} <= set(labels(crossed)[3].split())


def test_what_differs_together_with_something_else_is_told_as_ever() -> None:
    pair = [cell(), cell(engine="offload", noise="counter")]
    assert labels(pair) == [one.label for one in pair]
    switched = [cell(engine="offload"), cell(engine="offload", overlap=False)]
    assert labels(switched) == [one.label for one in switched]  # no_overlap says enough
    assert labels([cell()]) == [cell().label]
    assert labels([]) == []


def test_what_a_label_never_says_is_told_where_it_alone_tells_two_apart() -> None:
    assert [label.split()[-1] for label in labels([cell(steps=2), cell(steps=9)])] == ["steps=2", "steps=9"]
    assert cell(steps=9).label == cell().label
    both = [cell(steps=2), cell(steps=9, batch_size=2)]
    assert labels(both) == [one.label for one in both]
