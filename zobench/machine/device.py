"""Which device a run uses, and why."""

from __future__ import annotations

from zobench.runspec import RunSpec


def choose_device(wanted: str) -> tuple[str, str]:
    """(device, reason) for a spec's ``device``; raises ``ValueError`` for a CUDA device that is not there."""
    if wanted == "cpu":
        return "cpu", "device: cpu, as asked"
    from zobench.machine import accelerator

    count = accelerator.count()
    visible = f"{count or 'no'} CUDA device{'s are' if count > 1 else ' is'} visible"
    if wanted == "auto":
        other = accelerator.refused()
        unused = f", and {other} is not used" if other else ""
        return ("cuda:0" if count else "cpu"), f"device: {'cuda:0' if count else 'cpu'}, because {visible}{unused}"
    family, _, index = wanted.partition(":")
    if family in accelerator.REFUSED:
        why = accelerator.REFUSED[family]
        raise ValueError(f"`device` must be auto, cpu, cuda or cuda:N, but got {wanted!r}: {why}; use device=cpu")
    if family != "cuda" or not (index or "0").isdecimal():
        raise ValueError(f"`device` must be auto, cpu, cuda or cuda:N, but got {wanted!r}; use device=auto")
    if int(index or 0) >= count:
        raise ValueError(f"`device={wanted}` must be a visible device, but {visible}; use device=cpu or device=auto")
    chosen = f"cuda:{int(index or 0)}"
    return chosen, f"device: {chosen}, as asked"


def check_devices(spec: RunSpec) -> None:
    """Raises ``ValueError`` if ``spec`` needs more GPUs on a machine than this one has."""
    if not spec.device.startswith("cuda"):
        return
    from zobench.machine import accelerator

    needed, count = spec.gpus // spec.nodes, accelerator.count()
    if needed > count:
        nodes = f", nodes={spec.nodes}" if spec.nodes > 1 else ""
        raise ValueError(
            f"`gpus={spec.gpus}{nodes}` needs {needed} CUDA devices here, but {count or 'no'} "
            f"{'is' if count == 1 else 'are'} visible; ask for fewer, or use --device cpu, where gpus counts processes"
        )
