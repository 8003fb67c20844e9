"""The papers' words in a run's own terms: which fields of a spec a reported value fixes, and to what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zobench.runspec import METHODS, RunSpec, check_value
from zobench.runspec.kinds import FO_STEPS


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportedMethod:
    """A word for a method in the papers' tables. ``methods``: those of runs that it can be, the first the usual one;
    ``fields``: what else it fixes; ``has_usual_steps``: whether its runs with a task are known to be as long as the
    protocol's; ``counts_queries``: whether its forward passes are its queries'."""

    methods: tuple[str, ...]
    fields: tuple[tuple[str, Any], ...] = ()
    has_usual_steps: bool = True
    counts_queries: bool = True


REPORTED = {
    **dict.fromkeys(("mezo", "zo2", "distzo2"), ReportedMethod(methods=("zo-sgd",))),
    "vanilla-zo-sgd": ReportedMethod(methods=("zo-sgd",), fields=(("noise", "stored"),)),
    "fo-adam": ReportedMethod(methods=("fo-adam",), fields=(("foreach", True),)),
    "fo-adam-noforeach": ReportedMethod(methods=("fo-adam",), fields=(("foreach", False),)),
    # ZO-Bench's table 8 calls it so with any sparsity
    "zo-sgd": ReportedMethod(methods=("zo-sgd", "zo-sgd-sparse")),
    # whose forward passes are its blocks
    "zo-sgd-block": ReportedMethod(methods=("zo-sgd-block",), counts_queries=False),
    # the two ends of ZO-Bench's table 7: no layer by ZO, and every layer; it does not say how long those runs were
    "hybrid": ReportedMethod(methods=("hybrid", "fo-sgd", "zo-sgd"), has_usual_steps=False),
}
"""The fields that a method's name in the papers' tables fixes; one that is not listed has the name of a run's, and
fixes nothing else."""
PARALLEL = {
    "single": "none", "pertp": "pertp", "ddp": "ddp", "pertp+ddp": "2d", "pertp(inner)+ddp(outer)": "2d",
    "ddp(inner)+pertp(outer)": "2d-outer",
}  # fmt: skip
"""A way to share out a step, as DistZO2's tables call it -> ``parallel``."""
AUTOCAST = {"amp-fp16": "fp16"}
"""Mixed precision: weights in 32 bits, products in 16."""


def fields(paper: Mapping[str, str]) -> dict[str, tuple[Any, ...]]:
    """Field of a spec -> the values that a run may have in it to be what the row ``paper`` reports.

    The task counts only for an accuracy: the papers' time and memory on a task are those of the row's batch and tokens.
    """
    words = {name: paper[name] for name in ("model", "dtype", "autocast", "scheme") if paper[name]}
    if (dtype := words.get("dtype", "")) in AUTOCAST:
        words |= {"dtype": "fp32", "autocast": AUTOCAST[dtype]}
    allowed: dict[str, tuple[Any, ...]] = {name: (check_value(name, value),) for name, value in words.items()}
    allowed |= {name: (int(paper[name]),) for name in ("batch_size", "seq_len") if paper[name]}
    reported = _reported(paper)
    if paper["method"]:
        allowed["method"] = reported.methods
    allowed |= {name: (value,) for name, value in reported.fields}
    if paper["metric"] == "accuracy":
        if paper["task"]:
            allowed["task"] = (paper["task"].lower().replace("-", ""),)
        if reported.has_usual_steps:
            allowed["steps"] = (METHODS.get(reported.methods[0]).steps,)
    return allowed | _setting(paper)


def _reported(paper: Mapping[str, str]) -> ReportedMethod:
    return REPORTED.get(paper["method"], ReportedMethod(methods=(paper["method"],)))


def _setting(paper: Mapping[str, str]) -> dict[str, tuple[Any, ...]]:
    """Returns the fields that the column ``setting`` fixes. GPUs count only where a step is shared out as zobench does:
    ZO-Bench's table 4 has several to hold one model."""
    if paper["setting"] in PARALLEL and paper["gpus"]:
        gpus = int(paper["gpus"])
        return {"gpus": (gpus,), "parallel": (PARALLEL[paper["setting"]] if gpus > 1 else "none",)}
    name, _, value = paper["setting"].partition("=")
    if name in ("aligned", "unaligned"):
        return {"aligned": (name == "aligned",)}
    if name == "sparsity":
        return {"sparsity": (float(value.rstrip("%")) / 100,)}
    if name == "forward_passes" and _reported(paper).counts_queries:
        return {"queries": (int(value),)}
    if name == "zo_layers":  # ZO-Bench's table 7 for OPT-1.3B: no layer by ZO is FO-SGD, all 24 are ZO-SGD
        if int(value) == 0:
            return {"method": ("fo-sgd",), "steps": (FO_STEPS,)}
        return {"method": ("zo-sgd",)} if int(value) == 24 else {"method": ("hybrid",), "zo_layers": (int(value),)}
    return {}


def deviations(spec: RunSpec, paper: Mapping[str, str]) -> dict[str, tuple[Any, Any]]:
    """Field -> (what the run has, what the paper has), for all in which ``spec`` is not what ``paper`` reports."""
    pairs = {name: (getattr(spec, name), allowed) for name, allowed in fields(paper).items()}
    return {name: (value, allowed[0]) for name, (value, allowed) in pairs.items() if value not in allowed}
