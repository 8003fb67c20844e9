"""Recipes of small figures, and results with a timeline and losses to draw."""

import dataclasses
from typing import Any

from tests.support.tables import TINY, result
from zobench.result import Result

BARS = 'kind = "bars"\n' + TINY + "[axes]\nx = 'Model'\nlog_y = true\nlimit = { value = 1e9, label = '1 GB' }\n"
LINES = """
kind = "lines"
title = "By batch"
runner = "batch_size"
columns = [{ header = "MeZO", where = { engine = "resident" } }]
metrics = [{ name = "throughput", header = "Throughput (tokens/s)", format = ".0f", better = "higher" }]
[where]
seq_len = 100
[rows.product]
batch_size = [1, 4]
"""
TIMELINE = """
kind = "timeline"
title = "Steps"
paper = "p"
artifact = "f5"
runner = "ablation"
[where]
engine = "offload"
seq_len = 100
batch_size = [1, 2]
[[panels]]
title = "a. naive"
where = { overlap = false }
[[panels]]
title = "b. overlapped"
where = { overlap = true }
"""


def recorded(model: str, overlap: bool, shift: float = 5.0, **spec: Any) -> Result:
    rows = [["upload", "upload", 0, shift, shift + 1.0], ["compute", "compute", 0, shift + 1.0, shift + 3.0]]
    return dataclasses.replace(result(model, "offload", overlap=overlap, **spec), timeline=rows)
