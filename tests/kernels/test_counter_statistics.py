"""The counter stream is normal and independent: every statistic lies within 5 standard errors, on 4 M samples."""

import math

import pytest
import torch

from zobench import kernels
from zobench.kernels import Span, philox

COUNT = 1 << 22
SIGMAS = 5.0
SEED, TENSOR = 20250101, 17


def draw(seed=SEED, tensor_id=TENSOR, start=0):
    out = torch.empty(COUNT)
    kernels.normals(seed, Span(tensor_id, start), out)
    return out.double()


def deviation_of_moment(z, power):
    """Standard errors between the sample's raw moment and a normal's: var(z**k) = E z**2k - (E z**k)**2."""

    def expected(k):
        return math.prod(range(k - 1, 0, -2)) if k % 2 == 0 else 0

    error = math.sqrt((expected(2 * power) - expected(power) ** 2) / z.numel())
    return abs((z**power).mean().item() - expected(power)) / error


def deviation_of_correlation(a, b):
    """Standard errors from 0 of the mean product of independent variables with mean 0 and variance 1."""
    return abs((a * b).mean().item()) * math.sqrt(a.numel())


def squares(z):
    """z**2 with mean 0 and variance 1: pairs that share a radius or an angle show here."""
    return (z * z - 1) / math.sqrt(2)


def kolmogorov_smirnov(z):
    """sqrt(n) times the largest distance between the sample's distribution and the normal one."""
    cdf = (1 + torch.erf(z.sort().values / math.sqrt(2))) / 2
    steps = torch.arange(z.numel() + 1, dtype=torch.float64) / z.numel()
    return max((steps[1:] - cdf).max(), (cdf - steps[:-1]).max()).item() * math.sqrt(z.numel())


CRITICAL = math.sqrt(-math.log(math.erfc(SIGMAS / math.sqrt(2)) / 2) / 2)
"""Kolmogorov's 2 * exp(-2 * x**2) equals the probability of 5 sigma."""


@pytest.fixture(scope="module")
def z():
    return draw()


@pytest.mark.parametrize("power", [1, 2, 3, 4, 5, 6])
def test_moments_are_a_normals(z, power):
    assert deviation_of_moment(z, power) < SIGMAS


def test_the_distribution_is_normal(z):
    assert kolmogorov_smirnov(z) < CRITICAL


@pytest.mark.parametrize("place", range(4))
def test_each_of_a_counters_four_normals_is_normal(z, place):
    part = z[place::4]
    assert max(deviation_of_moment(part, k) for k in (1, 2, 3, 4)) < SIGMAS
    assert kolmogorov_smirnov(part) < CRITICAL


@pytest.mark.parametrize("limit", [0.01, 1, 2, 3, 4, 4.5])
@pytest.mark.parametrize("side", [1, -1])
def test_tails_hold_as_many_as_a_normals(z, limit, side):
    share = math.erfc(limit / math.sqrt(2)) / 2
    count = (side * z > limit).sum().item()
    assert abs(count - share * COUNT) < SIGMAS * math.sqrt(share * (1 - share) * COUNT)


def test_the_largest_is_where_a_normals_would_be(z):
    """P(max of 4 M below 4.4) and P(above 6.3) are both under 1e-9."""
    assert 4.4 < z.abs().max() < 6.3


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"seed": SEED + 1}, id="next step"),
        pytest.param({"seed": SEED + (1 << 32)}, id="seed's high word"),
        pytest.param({"tensor_id": TENSOR + 1}, id="next tensor"),
        pytest.param({"tensor_id": TENSOR + (1 << 31)}, id="tensor's high bit"),
        pytest.param({"start": 1 << 34}, id="block's high word"),
        pytest.param({"start": COUNT}, id="next elements"),
        pytest.param({"seed": TENSOR, "tensor_id": SEED}, id="seed and tensor exchanged"),
    ],
)
def test_streams_do_not_correlate(z, other):
    y = draw(**other)
    assert deviation_of_correlation(z, y) < SIGMAS
    assert deviation_of_correlation(squares(z), squares(y)) < SIGMAS


@pytest.mark.parametrize("lag", range(1, 9))
def test_neighbours_do_not_correlate(z, lag):
    assert deviation_of_correlation(z[:-lag], z[lag:]) < SIGMAS
    assert deviation_of_correlation(squares(z[:-lag]), squares(z[lag:])) < SIGMAS


@pytest.mark.parametrize("pair", [(0, 1), (2, 3), (0, 2), (1, 3), (0, 3), (1, 2)], ids=str)
def test_normals_of_one_counter_do_not_correlate(z, pair):
    a, b = z[pair[0] :: 4], z[pair[1] :: 4]
    assert deviation_of_correlation(a, b) < SIGMAS
    assert deviation_of_correlation(squares(a), squares(b)) < SIGMAS
    assert deviation_of_correlation(squares(a), b) < SIGMAS


def test_the_angle_of_a_pair_is_uniform(z):
    octants = torch.histc(torch.atan2(z[1::4], z[0::4]), bins=16, min=-math.pi, max=math.pi)
    expected = COUNT / 4 / 16
    assert ((octants - expected).abs() / math.sqrt(expected)).max() < SIGMAS


def test_small_faults_are_found(z):
    """The tests of these tests: faults of half a percent, in a copy."""
    assert deviation_of_moment(z * 1.005, 2) > SIGMAS
    assert deviation_of_moment(z + 0.005, 1) > SIGMAS
    assert kolmogorov_smirnov(z + 0.005) > CRITICAL
    assert deviation_of_correlation(z[:-1], z[1:] + 0.005 * z[:-1]) > SIGMAS
    assert deviation_of_correlation(squares(z), squares(z.roll(1) * 0.99 + z * 0.1)) > SIGMAS


@pytest.fixture(scope="module")
def signs():
    return draw(SEED | philox.SIGNS)


class TestSigns:
    """Random signs: every bit of a counter is fair, and nothing correlates."""

    def test_each_of_a_counters_128_signs_is_fair(self, signs):
        assert bool((signs.abs() == 1).all())
        means = signs.view(-1, 128).mean(0) * math.sqrt(COUNT / 128)
        assert means.abs().max() < SIGMAS

    @pytest.mark.parametrize("lag", [1, 2, 3, 4, 31, 32, 64, 127, 128, 129])
    def test_neighbours_do_not_correlate(self, signs, lag):
        assert deviation_of_correlation(signs[:-lag], signs[lag:]) < SIGMAS

    @pytest.mark.parametrize("other", [{"seed": SEED}, {"seed": SEED + 1 | philox.SIGNS}, {"tensor_id": TENSOR + 1}])
    def test_streams_do_not_correlate(self, signs, other):
        y = draw(**{"seed": SEED | philox.SIGNS, **other})
        assert deviation_of_correlation(signs, y) < SIGMAS

    def test_sums_are_those_of_a_random_walk(self, signs):
        walks = signs.view(-1, 1024).sum(1) / 32
        assert deviation_of_correlation(walks, walks.roll(1)) < SIGMAS
        assert abs(walks.square().mean().item() - 1) < SIGMAS * math.sqrt(2 / walks.numel())
        assert (
            kolmogorov_smirnov(walks + torch.rand_like(walks) / 16 - 1 / 32) < CRITICAL
        )  # sums come in steps of 1 / 16
