"""All of zobench's metrics: those that a result holds, and those that need the predictor, as the floor's share."""

from __future__ import annotations

from zobench.cost import footprint
from zobench.cost.budget import moved_bytes
from zobench.cost.seconds import floor_share, link_rate, predicted_step
from zobench.result.quantity import Quantity
from zobench.store import measured

_NO_RATES = ("—", "the machine's rates were not stored with the result")
_NOT_ASKED = ("—", "transfers alone were not measured (parts=true)")
_RATE = {"1e9 params/s": 1e9}

PREDICTED_STEP_TIME = Quantity(
    name="predicted_step_time", key="predicted_step_seconds", value=predicted_step, base_unit="s", units={"s": 1},
    absent=_NO_RATES, source="predicted",
)  # fmt: skip


LINK_RATES = (
    measured.per_run(
        lambda run: link_rate(run, "upload_seconds"), name="link_rate", key="upload_rate", base_unit="params/s",
        units=_RATE, absent=_NOT_ASKED, part="upload_seconds",
    ),
    measured.per_run(
        lambda run: link_rate(run, "offload_seconds"), name="offload_rate", key="offload_rate", base_unit="params/s",
        units=_RATE, absent=_NOT_ASKED, part="offload_seconds",
    ),
)  # fmt: skip
"""The papers call uploads and offloads ``link_rate`` alike."""
FLOOR = Quantity(
    name="floor", key="floor_share", value=floor_share, base_unit="1", units=measured.PERCENT,
    about="Floor: the least time that this machine's measured rates allow for a step, over the time it took.",
    share=True, absent=_NO_RATES,
)  # fmt: skip


MOVED = Quantity(
    name="moved", key="moved_bytes", base_unit="bytes", units=measured.BYTES,
    value=lambda result: moved_bytes(result.spec) if footprint.is_sized(result.spec) else None,
    about="Moved: bytes of weights that a step moves, by their format (zobench.cost.budget).",
    absent=("—", "its model is not known here, or its device_memory too small"), source="predicted",
)  # fmt: skip

GPUS = Quantity(
    name="gpus", key="consumed_gpus", value=lambda result: float(result.spec.gpus), base_unit="1", units={"GPUs": 1},
    beside_metric="gpu_memory",
)  # fmt: skip
"""The devices that a run takes (ZO-Bench, table 4); predicted as those that its memory fills."""

METRICS = (
    measured.GPU_MEMORY, measured.THROUGHPUT, measured.STEP_TIME, PREDICTED_STEP_TIME, *measured.ACCURACIES,
    *measured.SCORES, *LINK_RATES, MOVED, FLOOR, measured.UPDATE_SURVIVAL, *measured.CHECKPOINTS, measured.HOST_MEMORY,
    measured.PROCESS_MEMORY, GPUS, *measured.COSTS, measured.LOSS_DIFFERENCE,
)  # fmt: skip
"""The metrics in the order in which reports list them."""
