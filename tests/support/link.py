"""A step's seconds when its schedule runs on lanes of given rates: each lane one operation after another."""

from zobench.engine.transfers import schedule

TOKENS = 2048
MODELS = {"OPT-13B": (40, 5120), "OPT-30B": (48, 7168), "OPT-175B": (96, 12288)}
"""Layers, width."""
GPUS = {
    "A100, PCIe 4": {"products": 230e12, "noise": 1 / 110e9 + 6 / 1.35e12, "link": 24e9 * 0.88},
    "H100, PCIe 5": {"products": 560e12, "noise": 1 / 210e9 + 6 / 2.8e12, "link": 52e9 * 0.9},
}
"""Assumed: FLOP/s in fp16, seconds of an element's draw and passes, bytes/s of each direction of a busy link."""


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
    ring = schedule.places(sizes, slots) if ring is None else ring
    free, done, ends = {}, {}, []

    def run(op):
        nbytes, compute = units[op.block]
        start = max([free.get(op.lane, 0.0), *(done.get(key, 0.0) for key in op.after)])
        free[op.lane] = done[op.key] = start + (compute if op.kind == "compute" else nbytes / link)

    for op in schedule.prologue(len(units), slots, ring=ring):
        run(op)
    for _ in range(4):
        for op in schedule.traversal(len(units), slots, ring=ring):
            run(op)
        free["compute"] += head
        ends.append(free["compute"])
    return ends[-1] - ends[-2]


def bound(units, gpu, head=0.03):
    """No step can be shorter: the link one way, or the compute."""
    return max(sum(nbytes for nbytes, _ in units) / GPUS[gpu]["link"], sum(compute for _, compute in units) + head)
