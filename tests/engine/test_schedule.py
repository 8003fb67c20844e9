"""The schedule as data: what runs, in which order, waiting for what."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zobench.engine.schedule import Op, prologue, step, traversal

SIZES = list(itertools.product(range(1, 8), range(1, 5)))


@pytest.mark.parametrize(("n_blocks", "n_slots"), SIZES)
def test_every_block_is_uploaded_once_per_traversal_into_its_slot(n_blocks, n_slots):
    slots = min(n_blocks, n_slots)
    first = [*prologue(n_blocks, n_slots), *traversal(n_blocks, n_slots)]
    for kind in ("compute", "offload"):
        assert [op.block for op in first if op.kind == kind] == list(range(n_blocks))
    uploads = [op.block for op in first if op.kind == "upload"]
    assert uploads[:n_blocks] == list(range(n_blocks))
    assert sorted(uploads[n_blocks:]) == list(range(slots))  # these already belong to the next traversal
    assert all(op.slot == op.block % slots for op in first)


def dependencies(ops):
    """For each operation the indexes of those it waits for: its keys' latest runs and its lane's predecessor."""
    latest = {}
    lane_tail = {}
    result = []
    for index, op in enumerate(ops):
        waits = {latest[key] for key in op.after if key in latest}
        if op.lane in lane_tail:
            waits.add(lane_tail[op.lane])
        result.append(tuple(sorted(waits)))
        latest[op.key] = index
        lane_tail[op.lane] = index
    return result


def holds(ops, preference):
    """Plays a schedule, taking the available operation of the most preferred kind; checks every slot at every use."""
    waits, done, contents = dependencies(ops), set(), {}
    while len(done) < len(ops):
        ready = [i for i in range(len(ops)) if i not in done and done.issuperset(waits[i])]
        assert ready, "the schedule waits for itself"
        index = min(ready, key=lambda i: (preference.index(ops[i].kind), i))
        op = ops[index]
        if op.kind == "upload":
            if contents.get(op.slot) is not None:
                return False
            contents[op.slot] = op.block
        elif contents.get(op.slot) != op.block:
            return False
        elif op.kind == "offload":
            contents[op.slot] = None
        done.add(index)
    return True


ORDERS = list(itertools.permutations(("upload", "compute", "offload")))


@given(st.integers(1, 9), st.integers(1, 5), st.booleans(), st.integers(1, 3))
def test_no_order_of_the_lanes_overwrites_a_slot_in_use(n_blocks, n_slots, overlap, traversals):
    ops = [*prologue(n_blocks, n_slots, overlap), *traversal(n_blocks, n_slots, overlap) * traversals]
    assert all(holds(ops, order) for order in ORDERS)


@pytest.mark.parametrize("kind", ["compute", "offload", "upload"])
def test_without_one_kind_of_dependency_a_slot_is_overwritten_or_read_too_early(kind):
    ops = [*prologue(5, 2), *traversal(5, 2), *traversal(5, 2)]
    broken = [Op(op.kind, op.block, op.slot, op.lane, () if op.kind == kind else op.after) for op in ops]
    assert not all(holds(broken, order) for order in ORDERS)


def test_an_upload_waits_for_the_last_write_of_the_block_it_reads():
    for n_blocks, n_slots in SIZES:
        for op in traversal(n_blocks, n_slots):
            if op.kind == "upload":
                assert ("offload", op.block) in op.after


def test_without_overlap_there_is_one_lane():
    assert {op.lane for op in traversal(4, 3, overlap=False)} == {"compute"}
    assert {op.lane for op in traversal(4, 3)} == {"compute", "upload", "offload"}


def test_without_fused_update_every_transfer_happens_twice():
    fused, unfused = step(6, 3), step(6, 3, fused_update=False)
    for kind in ("upload", "offload"):
        assert sum(op.kind == kind for op in unfused) == 2 * sum(op.kind == kind for op in fused)
    assert [op.block for op in unfused if op.kind == "update"] == list(range(6))


def test_a_schedule_has_three_operations_per_block():
    """How long building one takes is measured in tests/benchmarks."""
    assert len(step(96, 3)) == 3 * 96
