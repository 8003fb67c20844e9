"""The cost model of DistZO2's appendix C: its equation 3, what the paper says of them, and its measured rates."""

import csv
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zobench import recipes
from zobench.cost.roofline import Links, offload_seconds, sliced_seconds, whole_seconds

sizes = st.floats(1, 1e12)
rates = st.floats(1e6, 1e13)
counts = st.integers(1, 64)


@given(sizes, counts, rates, rates)
def test_a_block_in_slices_takes_what_equation_3_says(size: float, n: int, pcie: float, nvlink: float) -> None:
    links = Links(link=pcie, peers=nvlink)
    assert sliced_seconds(size, n, links) == pytest.approx(size / (n * pcie) + (n - 1) * size / (n * nvlink))
    assert whole_seconds(size, n, links) == size / pcie
    assert offload_seconds(size, n, links) == pytest.approx(size / (n * pcie))


@given(sizes, counts, rates, st.floats(1, 1e3))
def test_slices_are_never_slower_where_peers_are_no_slower_than_the_host(size, n, pcie, times) -> None:
    """Appendix C: with B_NVLink near B_PCIe it degrades to whole transfers, "no worse than" them."""
    whole = whole_seconds(size, n, Links(link=pcie))
    assert sliced_seconds(size, n, Links(link=pcie, peers=times * pcie)) <= whole * (1 + 1e-9)
    assert sliced_seconds(size, n, Links(link=pcie)) == pytest.approx(whole)


def test_devices_that_share_the_hosts_links_get_their_share_of_them_and_never_more_than_their_own() -> None:
    links = Links(link=25e9, host=40e9)
    assert [links.share(ranks) for ranks in (1, 2, 4)] == [25e9, 20e9, 10e9]
    assert Links(link=25e9).share(64) == 25e9
    assert whole_seconds(1e9, 4, links) == 0.1
    assert sliced_seconds(1e9, 4, Links(link=25e9, host=40e9, peers=75e9)) == pytest.approx(0.025 + 0.01)
    assert offload_seconds(1e9, 4, links) == 0.025


def test_equation_3_explains_the_papers_own_upload_rates() -> None:
    """Table 2: from each model's rate without slices (B_PCIe, in 16 bits) and NVLink's 450 GB/s each way (H20)."""
    with recipes.find("paper", "reference").open() as file:
        rows = [row for row in csv.DictReader(file) if (row["paper"], row["artifact"]) == ("distzo2", "table2")]
    values = {(row["model"], row["setting"]): float(row["value"]) * 1e9 for row in rows}
    models = {model for model, _ in values}
    predicted = {
        model: 1 / sliced_seconds(1.0, 4, Links(link=values[model, "upload"], peers=450e9 / 2)) for model in models
    }
    ratios = [predicted[model] / values[model, "upload+sliced"] for model in models]
    assert len(ratios) == 7
    assert statistics.median(ratios) == pytest.approx(1, abs=0.1)
    assert min(ratios) > 0.75
    assert max(ratios) < 1.45  # OPT-6.7B, whose sliced rate is below all others in the paper
