"""Fitness shaping against its definitions by hand."""

import math

import pytest

from zobench.methods.low_rank import LOZO
from zobench.methods.populations import FZOO, SHAPINGS, centred_ranks, z_scores


def test_z_scores_are_about_the_mean_of_a_group_over_the_deviation_of_all() -> None:
    spread = math.sqrt(sum((x - 5.5) ** 2 for x in (0, 1, 10, 11)) / 4)
    expected = [-0.5 / spread, 0.5 / spread, -0.5 / spread, 0.5 / spread]
    assert z_scores([0.0, 1.0, 10.0, 11.0], 2, 0.0) == pytest.approx(expected)
    for value, count in ((3.0, 2), (0.1, 3), (0.1, 8), (0.6, 30)):  # of the last three sums are rounded
        assert z_scores([value] * count, 1, 0.0) == [0.0] * count
        assert FZOO(lr=1.0, queries=count).sigma([value] * count) == 0


def test_ranks_are_within_a_group_and_ties_share_a_place() -> None:
    assert centred_ranks([5.0, 1.0, 30.0, 20.0], 2, 0.0) == [0.5, -0.5, 0.5, -0.5]
    assert centred_ranks([1.0, 2.0, 2.0], 1, 0.0) == [-0.5, 0.25, 0.25]


@pytest.mark.parametrize("shaping", SHAPINGS)
@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_where_one_reward_is_not_finite_no_fitness_is(shaping: str, lost: float) -> None:
    assert not any(map(math.isfinite, SHAPINGS[shaping]([1.0, lost, 2.0, 3.0], 2, 1e-5)))


def test_a_restored_method_goes_on_in_its_subspace() -> None:
    method = LOZO(lr=1e-3, interval=4)
    method._subspace, method._step = 1234, 2
    again = LOZO(lr=1e-3, interval=4)
    again.restore(method.state())
    assert {point.subspace for point in again._points([(7, None)])} == {1234}
