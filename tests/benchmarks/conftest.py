"""What these files time they also check: where pytest-benchmark measures nothing, as is usual, every
benchmark runs once, on small sizes. ``pytest tests/benchmarks --benchmark-enable -s`` measures."""

import pytest


@pytest.fixture
def small(benchmark):
    """Whether nothing is measured."""
    return benchmark.disabled


@pytest.fixture
def timed(benchmark, capsys, request):
    """Calls ``action()`` in several rounds; prints and keeps the median of their seconds and ``amount`` over it."""

    def measure(action, amount=1, unit="calls", rounds=5):
        benchmark.pedantic(action, rounds=rounds, warmup_rounds=1)
        if benchmark.stats is not None:
            seconds = benchmark.stats.stats.median
            benchmark.extra_info[f"{unit}_per_second"] = amount / seconds
            with capsys.disabled():
                print(f"\n{request.node.name}: {seconds:.3g} s, {amount / seconds:.3g} {unit} a second")

    return measure
