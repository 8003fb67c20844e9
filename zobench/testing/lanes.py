"""The tests of lanes: operations in the order of their dependencies, errors that surface, a timeline that is true."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from zobench.engine.transfers.lanes import Action, Lanes
from zobench.engine.transfers.schedule import Op
from zobench.testing.suite import refused

SLOW = 0.02
"""Seconds of a slow operation: long against a switch of threads."""


class LanesConformance:
    """Any lanes (:class:`~zobench.engine.transfers.lanes.Lanes`) whose operations run on the CPU. Give :meth:`make`."""

    def make(self) -> Lanes:
        raise NotImplementedError

    @contextmanager
    def lanes(self) -> Iterator[Lanes]:
        """Lanes, closed at the end."""
        lanes = self.make()
        try:
            yield lanes
        finally:
            lanes.close()

    def test_a_computation_waits_for_its_upload_and_an_offload_for_its_computation(self) -> None:
        with self.lanes() as lanes:
            for block in range(5):
                done: list[str] = []
                upload = lanes.submit(_op("upload", block), _note(done, "upload", SLOW), ())
                compute = lanes.submit(_op("compute", block), _note(done, "compute"), (upload,))
                lanes.submit(_op("offload", block), _note(done, "offload"), (compute,))
                lanes.drain()
                assert done == ["upload", "compute", "offload"], f"block {block} ran in the order {done}"

    def test_an_upload_waits_for_the_offload_that_empties_its_slot(self) -> None:
        with self.lanes() as lanes:
            done: list[str] = []
            compute = lanes.submit(_op("compute", 0), _note(done, "compute"), ())
            offload = lanes.submit(_op("offload", 0), _note(done, "offload", SLOW), (compute,))
            upload = lanes.submit(_op("upload", 1), _note(done, "upload"), (offload,))
            lanes.wait(upload)
            assert done == ["compute", "offload", "upload"]

    def test_operations_of_one_lane_run_in_the_order_they_were_given(self) -> None:
        with self.lanes() as lanes:
            for lane in ("upload", "compute", "offload"):
                done: list[str] = []
                for n in range(20):
                    lanes.submit(_op(lane, n), _note(done, str(n), SLOW / 10 if n % 5 == 0 else 0.0), ())
                lanes.drain()
                assert done == [str(n) for n in range(20)], f"lane {lane} ran in the order {done}"

    def test_a_computation_is_done_when_it_was_submitted(self) -> None:
        with self.lanes() as lanes:
            done: list[str] = []
            lanes.submit(_op("compute", 0), _note(done, "compute", SLOW), ())
            assert done == ["compute"]

    def test_who_waits_for_an_operation_or_for_all_finds_them_done(self) -> None:
        with self.lanes() as lanes:
            done: list[str] = []
            ticket = lanes.submit(_op("upload", 0), _note(done, "first", SLOW), ())
            lanes.submit(_op("upload", 1), _note(done, "second", SLOW), ())
            lanes.wait(ticket)
            assert done[:1] == ["first"]
            lanes.drain()
            assert done == ["first", "second"]

    def test_an_error_in_a_computation_is_raised_where_it_is_submitted(self) -> None:
        with self.lanes() as lanes:
            _raises(lambda: lanes.submit(_op("compute", 0), _fail, ()))

    def test_an_error_in_a_transfer_is_raised_by_who_waits_and_by_a_drain(self) -> None:
        for lane in ("upload", "offload"):
            lanes, done = self.make(), list[str]()
            ticket = lanes.submit(_op(lane, 0), _fail, ())
            _raises(lambda lanes=lanes, ticket=ticket: lanes.wait(ticket))  # type: ignore[misc]
            _raises(
                lambda lanes=lanes, ticket=ticket, done=done: lanes.submit(  # type: ignore[misc]
                    _op("compute", 0), _note(done, "compute"), (ticket,)
                )
            )
            assert done == [], "what depends on a failed transfer must not run"
            _raises(lanes.drain)
            lanes.close()

    def test_the_timeline_says_what_ran_since_the_recording_began(self) -> None:
        with self.lanes() as lanes:
            done: list[str] = []
            lanes.submit(_op("upload", 9), _note(done, "before"), ())
            lanes.drain()
            lanes.record()
            upload = lanes.submit(_op("upload", 0), _note(done, "upload", SLOW), ())
            compute = lanes.submit(_op("compute", 0), _note(done, "compute", SLOW), (upload,))
            lanes.submit(_op("offload", 0), _note(done, "offload", SLOW), (compute,))
            events = lanes.timeline()
            names = [(lane, kind, block) for lane, kind, block, *_ in events]
            assert names == [(kind, kind, 0) for kind in ("upload", "compute", "offload")]
            for (*_, begin, end), (*_, after, _) in zip(events, [*events[1:], events[-1]], strict=True):
                assert 0 <= begin < end, "an operation must begin after the recording, and take time"
                assert end <= after or begin == after, "what depends on an operation begins after its end"
                assert end - begin >= SLOW / 2
            assert lanes.timeline() == []


def _op(lane: str, block: int) -> Op:
    return Op(lane, block, 0, lane)


def _note(done: list[str], name: str, seconds: float = 0.0) -> Action:
    def action() -> None:
        time.sleep(seconds)
        done.append(name)

    return action


def _fail() -> None:
    raise OSError("the link is gone")


def _raises(call: Callable[[], object]) -> None:
    assert refused(call, OSError) == "the link is gone", "the error of the operation itself must be raised"
