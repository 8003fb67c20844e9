"""The command that writes a file about this machine's device, for plan and predict here and elsewhere."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from zobench.cli import console
from zobench.cli.common import Device, app
from zobench.cli.usage import MEASURE
from zobench.machine.device import choose_device
from zobench.machine.memory import total_host_bytes
from zobench.measure.environment import fingerprint_without_torch
from zobench.session.inputs import check_file

Card = Annotated[
    str | None, typer.Option("--gpu", metavar="GPU", help="Whose data sheet it is, of `zobench list gpus`.")
]


SECONDS = 12.0
"""Of measuring; more than before a sweep, because the file is for later and for others."""


@app.command(rich_help_panel=MEASURE)
def calibrate(
    out: Annotated[Path, typer.Option("--out", metavar="FILE.toml", help="The file to write.")],
    gpu: Card = None, device: Device = "auto",
) -> None:  # fmt: skip
    """Measure what this machine's GPU or CPU reaches, and write it as a file that plan and predict take as --gpu."""
    from zobench.execute.rates import BUSY_CORES

    if out.suffix != ".toml":
        raise ValueError(f"`--out` must end in .toml, but got {str(out)!r}; plan and predict know such a file by it")
    check_file("--out", out)
    chosen, why = choose_device(device)
    if not chosen.startswith("cpu") and gpu is None:
        raise ValueError("`--gpu` must name the card, whose data sheet the file begins with, but is missing")
    from zobench.measure import calibrate as measuring

    facts = fingerprint_without_torch()
    console.say(f"{why}; {facts.description}")
    with console.error_console().status("measuring, about 20 s"):
        rates = measuring.calibrate(chosen, SECONDS)
    if (others := rates["other_cpu_cores"] or 0.0) > BUSY_CORES:
        raise ValueError(
            f"the machine must be idle to be measured, but other processes kept {others:.1f} cores busy; "
            "run it again when they are done"
        )
    out.write_text(_described(chosen, gpu, facts.description, rates), encoding="utf-8")
    print(f"{out}: `zobench plan --model OPT-13B --gpu {out}`")


def _described(device: str, gpu: str | None, name: str, rates: dict[str, Any]) -> str:
    from zobench.cost import hardware
    from zobench.cost.hardware import measured
    from zobench.measure.threads import available_cores

    today = datetime.date.today()
    if gpu is not None and not device.startswith("cpu"):
        return measured.of_gpu(hardware.load(gpu), rates, today)
    return measured.of_cpu(name, rates, available_cores(), total_host_bytes() or 0, today)
