"""A subspace that was drawn before a stop is the one after it."""

from zobench.methods.low_rank import LOZO


def test_a_restored_method_goes_on_in_its_subspace() -> None:
    method = LOZO(lr=1e-3, interval=4)
    method._subspace, method._step = 1234, 2
    again = LOZO(lr=1e-3, interval=4)
    again.restore(method.state())
    assert {point.subspace for point in again._points([(7, None)])} == {1234}
