"""The schedule as data: what runs, in which order, waiting for what; and a step's seconds on lanes of given rates."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zobench.engine.transfers.schedule import numbered, places, prologue, traversal

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


def overwrites(ops, place, preference):
    """Plays a schedule, taking the available operation of the most preferred kind: whether a block is uploaded onto
    bytes that another still has, or used where it is not. ``place(op)``: its block's first byte, and the end."""
    waits, done, there = dependencies(ops), set(), {}
    while len(done) < len(ops):
        ready = [i for i in range(len(ops)) if i not in done and done.issuperset(waits[i])]
        assert ready, "the schedule waits for itself"
        index = min(ready, key=lambda i: (preference.index(ops[i].kind), i))
        op = ops[index]
        first, last = place(op)
        if op.kind == "upload":
            if any(begin < last and first < end for begin, end in there.values()):
                return True
            there[op.block] = first, last
        elif there.get(op.block) != (first, last):
            return True
        elif op.kind == "offload":
            del there[op.block]
        done.add(index)
    return False


ORDERS = list(itertools.permutations(("upload", "compute", "offload")))


@given(st.integers(1, 9), st.integers(1, 5), st.booleans(), st.integers(1, 3))
def test_no_order_of_the_lanes_overwrites_a_slot_in_use(n_blocks, n_slots, overlap, traversals):
    ops = [*prologue(n_blocks, n_slots, overlap), *traversal(n_blocks, n_slots, overlap) * traversals]
    assert not any(overwrites(ops, lambda op: (op.slot, op.slot + 1), order) for order in ORDERS)


RINGS = st.tuples(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 4))


@given(RINGS, st.booleans())
def test_in_a_ring_of_bytes_no_order_of_the_lanes_overwrites_a_block_in_use(form, overlap):
    sizes, slots = form
    ring = places(sizes, slots)
    assert all(last - first == size and first >= 0 for (first, last), size in zip(ring, sizes, strict=True))
    assert max(last for _, last in ring) <= slots * max(sizes)
    once = traversal(len(sizes), slots, overlap, ring=ring)
    assert sorted(op.block for op in once if op.kind == "upload") == list(range(len(sizes)))
    assert all(op.slot == numbered(ring)[op.block] for op in once)
    ops = [*prologue(len(sizes), slots, overlap, ring=ring), *once * 3]
    assert not any(overwrites(ops, lambda op: ring[op.block], order) for order in ORDERS)


TOKENS = 2048
MODELS = {"OPT-13B": (40, 5120), "OPT-30B": (48, 7168), "OPT-175B": (96, 12288)}
"""Layers, width."""
GPUS = {
    "A100, PCIe 4": {"products": 230e12, "noise": 1 / 110e9 + 6 / 1.35e12, "link": 24e9 * 0.88},
    "H100, PCIe 5": {"products": 560e12, "noise": 1 / 210e9 + 6 / 2.8e12, "link": 52e9 * 0.9},
}
"""Assumed: FLOP/s in fp16, seconds of an element's draw and passes, bytes/s of each direction of a busy """


def units(model, gpu, granularity):
    """(bytes, seconds of compute) of each unit of an OPT in fp16: two forwards, one draw."""
    (layers, width), shape = MODELS[model], GPUS[gpu]
    attention = 2 * 2 * TOKENS * TOKENS * width / (shape["products"] * 0.7)
    elements = {"block": [12], "linear": [1, 1, 1, 1, 4, 4]}[granularity]
    of_a_block = [
        (2 * n * width**2, n * width**2 * (4 * TOKENS / shape["products"] + shape["noise"])) for n in elements
    ]
    last = min(3, len(of_a_block) - 1)  # the output projection comes after attention
    of_a_block[last] = of_a_block[last][0], of_a_block[last][1] + attention
    return of_a_block * layers


def seconds(units, gpu, slots=3, head=0.03, ring=None):
    """Seconds of a steady step; ``head``: of compute between two traversals."""
    sizes, link = [nbytes for nbytes, _ in units], GPUS[gpu]["link"]
    ring = places(sizes, slots) if ring is None else ring
    free, done, ends = {}, {}, []

    def run(op):
        nbytes, compute = units[op.block]
        start = max([free.get(op.lane, 0.0), *(done.get(key, 0.0) for key in op.after)])
        free[op.lane] = done[op.key] = start + (compute if op.kind == "compute" else nbytes / link)

    for op in prologue(len(units), slots, ring=ring):
        run(op)
    for _ in range(4):
        for op in traversal(len(units), slots, ring=ring):
            run(op)
        free["compute"] += head
        ends.append(free["compute"])
    return ends[-1] - ends[-2]


def bound(units, gpu, head=0.03):
    """No step can be shorter: the link one way, or the compute."""
    return max(sum(nbytes for nbytes, _ in units) / GPUS[gpu]["link"], sum(compute for _, compute in units) + head)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("gpu", GPUS)
def test_with_linear_layers_a_step_is_as_short_as_with_blocks_of_more_memory(model, gpu):
    """On lanes of assumed rates. With as many slots of the largest layer's size, uploads wait for its write-back."""
    blocks, layers = units(model, gpu, "block"), units(model, gpu, "linear")
    whole, cut = seconds(blocks, gpu), seconds(layers, gpu)
    assert bound(blocks, gpu) <= whole * (1 + 1e-9)
    assert cut < 1.05 * whole
    assert seconds(layers, gpu, ring=places([1] * len(layers), 3)) > 1.2 * whole
