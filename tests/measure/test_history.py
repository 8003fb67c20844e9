"""Memory over time: whole where it is short, thinned without losing a maximum where it is long."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from zobench.measure.observe import POINTS, memory_over_time
from zobench.measure.samples import FIELDS, Samples


def seen(**series: list[float | None]) -> Samples:
    count = max(map(len, series.values()))
    times: list[float | None] = [100 + index / 10 for index in range(count)]
    empty: dict[str, list[float | None]] = {name: [None] * count for name in FIELDS}
    return Samples(pid=1, series={**empty, "t": times, **series})


def test_the_devices_use_is_the_processs_where_it_is_known_and_else_the_whole_devices() -> None:
    both = seen(rss_bytes=[1.0, 1.0], process_used_bytes=[None, 3.0], device_used_bytes=[9.0, 9.0])
    assert memory_over_time(both)["device_bytes"] == [None, 3]
    assert memory_over_time(seen(rss_bytes=[1.0], device_used_bytes=[9.0]))["device_bytes"] == [9]
    assert "device_bytes" not in memory_over_time(seen(rss_bytes=[1.0]))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 1500), st.randoms(use_true_random=False))
def test_thinning_keeps_order_ends_and_the_maximum_of_every_stretch(count: int, chance: random.Random) -> None:
    rss, device = ([chance.choice([None, float(chance.randrange(10**9))]) for _ in range(count)] for _ in range(2))
    trace = memory_over_time(seen(rss_bytes=rss, process_used_bytes=device))
    seconds = [s for s in trace["seconds"] if s is not None]
    kept = [round(10 * s) for s in seconds]
    assert len(kept) <= POINTS
    assert kept == sorted(set(kept))
    assert (kept[0], kept[-1]) == (0, count - 1)
    assert len(kept) == count or count > POINTS
    for name, values in (("rss_bytes", rss), ("device_bytes", device)):
        if name not in trace:
            assert set(values) == {None}
            continue
        assert trace[name] == [values[index] for index in kept]
        stretches = 1 if count <= POINTS else 99
        for number in range(stretches):
            part = range(number * count // stretches, (number + 1) * count // stretches)
            highest = max((values[index] or 0 for index in part), default=0)
            assert highest == max((values[index] or 0 for index in kept if index in part), default=0)
