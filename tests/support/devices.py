"""The devices that tests run on: the CPU, and CUDA where there is one."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import torch

CUDA = "cuda:0"
ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
"""The marks of every test that needs CUDA: ``pytest -m gpu`` runs all of them and no other."""
DEVICES = ["cpu", pytest.param(CUDA, id="cuda", marks=ON_GPU)]
HOST = {"cpu": "pageable", CUDA: "pinned"}
"""The tier from which each device streams out of host memory."""


def on_devices(cases: Mapping[str, Iterable[Any]]) -> list[Any]:
    """Parameters (device, case) of the cases of each device, those of CUDA with its marks."""
    return [
        pytest.param(device, case, id=f"{device.partition(':')[0]}-{case}", marks=ON_GPU if device == CUDA else ())
        for device, case_of_device in cases.items()
        for case in case_of_device
    ]
