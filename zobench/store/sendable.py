"""The parts of a result that may be sent to others: a list of fields, each with the form that its values must have.

Whatever is not on the list stays at home, keys included. A word is sent where it is one of zobench's own: a name in its
lists, a part of a maker's name for a processor. Texts that people or programs wrote (reasons, warnings, tracebacks,
notes, names of their models, tasks and plug-ins) are sent only if asked for.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from zobench.measure.environment import CPU_FLAGS, PACKAGES, describe
from zobench.measure.samples import THROTTLE
from zobench.models import packaged, published
from zobench.result import Facts, Result
from zobench.result.examples import KEY as EXAMPLES
from zobench.result.examples import unpacked
from zobench.result.record import DISTURBED, DOUBTFUL, FEWER
from zobench.runspec import RunSpec, flat
from zobench.runspec.registries import METHODS, MODELS, PROGRAMS, SCHEMES, TASKS
from zobench.store.files import without_place
from zobench.store.reading import SCORES

NOT_SENT = "(text not sent)"
"""Stands for a reason, and for the rest of a warning that says how much a run's times count."""
MACHINE = r"[a-z0-9]{1,20}(-[a-z0-9]{1,20}){0,8}-\d{1,4}c-[0-9a-f]{6}"
"""The id that zobench makes of a machine's hardware and software (:mod:`zobench.measure.environment`)."""
_NAME = r"(?![\d.]+(/|$))[A-Za-z0-9][A-Za-z0-9._+-]{0,79}"
"""A plain name, as texts of a spec must be even where they are asked for."""
_HASH = r"[0-9a-f]{12}"
_NAMED = {
    "task": rf"{_NAME}(@{_HASH})?", "device": r"auto|cpu|cuda(:\d{1,3})?", "config_hash": _HASH, "weights_hash": _HASH,
}  # fmt: skip
_BUILD = r"\+(cpu|cu\d{2,3}|rocm\d(\.\d){1,2}|(git)?[0-9a-f]{7})"
_VERSION = rf"\d{{1,4}}(\.\d{{1,4}}){{1,2}}((\.|-)?(a|b|rc|dev|post)\d{{1,8}})?({_BUILD})?"
"""Three numbers at most: four are an address."""
_CPU = (
    r"Intel(\(R\))?|AMD|Arm|ARM|Apple|Ampere|IBM|Xeon(\(R\))?|Core(\(TM\))?|EPYC|Ryzen|Threadripper|PRO|Pro|Max|Ultra|"
    r"Processor|CPU|Gold|Silver|Platinum|Bronze|Altra|Neoverse-[NVE]\d|Cortex-[AX]\d{1,3}|x86_64|aarch64|arm64|@|"
    r"\d+-Core|\d\.\d+GHz|(i|FX-|[A-Z])?\d-?\d{0,5}[A-Z]{0,2}\d?"
)
_GPU = (
    r"NVIDIA|AMD|Tesla|GeForce|Quadro|RTX|GTX|TITAN|Instinct|Radeon|Graphics|Laptop|GPU|Ti|SUPER|Ada|Generation|PCIe|"
    r"HBM[23]e?|NVL|MIG|\dg\.\d+gb|\d+GB|(MI|GB|GH|[A-Z])?\d{1,4}[A-Za-z]{0,2}(-(SXM\d?|PCIE|PCIe|NVL|\d+GB|\d+Q))*"
)
_ID = rf"(?i:{_CPU}|{_GPU}|\dx|neoverse|cortex|x86|sxm\d?)"
"""A word of a machine's id, which is made of the processor's name."""
_OS = (
    r"(Linux|Darwin|Windows) \d{1,3}(\.\d{1,5}){0,2}(-(\d{1,5}|v\d{1,5}|fc|generic|aws|gcp|azure|amd64|cloud)){0,6} "
    r"(x86_64|aarch64|arm64|AMD64|ppc64le|riscv64|s390x)"
)
_WARNINGS = (
    rf"{DISTURBED}\d+\.\d cores busy meanwhile; expect slower steps",
    rf"{FEWER}\d+ of \d+, because other processes keep \d+\.\d cores busy; OMP_NUM_THREADS sets another( number)?",
)
_RATES = (
    "between_ranks_bytes_per_second", "copy_bytes_per_second", "disk_both_bytes_per_second", "disk_direct",
    "disk_read_bytes_per_second", "disk_write_bytes_per_second", "kernel_seconds", "link_both_bytes_per_second",
    "link_down_bytes_per_second", "link_up_bytes_per_second", "matmul_flops_per_second", "noise_elements_per_second",
    "operators_per_second", "touch_bytes_per_second", "other_cpu_cores", "bf16", "fp16", "fp32", "tf32", "fp8",
    "counter", "fused", "torch", "attention", "losses", "normals", "passes",
)  # fmt: skip
_SAMPLES = ("step_seconds", "loss", "projected_grad")
_PARTS = (
    "checkpoint_seconds", "checkpoint_stall_seconds", "checkpoint_written_bytes", "compute_seconds", "exchanged_bytes",
    "offload_seconds", "transfer_seconds", "update_survival", "upload_seconds", "whole_seconds",
)  # fmt: skip
_MEMORY = (
    "blocks_at_rest_bytes", "checkpoint_bytes", "device_peak_bytes",
    "device_process_peak_bytes", "device_reserved_peak_bytes", "device_wide_peak_bytes",
    "host_rss_baseline_bytes", "host_rss_peak_bytes", "host_unique_bytes", "pinned_bytes",
)  # fmt: skip
_POWER = (
    "energy_joules", "max_temperature_c", "mean_power_watts", "median_memory_clock_hz", "median_sm_clock_hz",
    "other_cpu_cores", "own_cpu_cores", "sampler_overhead", "samples", "swapped_bytes",
)  # fmt: skip
_FACTS = (
    "cores_available", "memory_limit_bytes", "numa_nodes", "own_order", "planted_slowdown", "price_per_hour",
    "target_accuracy", "threads", "turns", "warm_up_detected",
)  # fmt: skip
_GPU_FACTS = ("memory_mib", "pcie_generation", "pcie_generation_max", "pcie_width", "pcie_width_max")
_SPLITS = ("train", "dev", "test", "validation", "batches", "split")
_EVENTS = ("upload", "compute", "update", "offload", "copy", "save")
_OPTION_WORDS = ("accuracy", "loss", "none", "ranks", "z-score")
"""Texts among the options of zobench's own methods."""

_OUT: Any = object()
"""The mark of a form for a value that is not sent."""
Form = Callable[[Any], Any]


def sendable(result: Result, keep_text: bool = False) -> Result:
    """``result`` with the fields on the list alone; with ``keep_text`` its texts too, as they are."""
    parts = _parts(keep_text)
    kept = {name: form(getattr(result, name)) for name, form in parts.items()}
    spec = without_place(result).spec.replace(task_file="")
    if not keep_text:
        is_known = spec.model in _builtin_names()["model"] or packaged.get(spec.model) or published.get(spec.model)
        shown = spec.model if is_known else f"model-{spec.config_hash[:8]}"
        path = spec.model_path if packaged.get(spec.model_path) or published.get(spec.model_path) else ""
        spec = spec.replace(name="", model_path=path, model=shown)
    return replace(result, spec=spec, partial=result.partial is True, **kept)


def facts_of(environment: Facts) -> dict[str, Any]:
    """Returns those of a machine's facts (:func:`zobench.measure.environment.environment`) that may be sent."""
    sent: Facts = _parts(False)["environment"](environment)
    return sent.to_dict()


def unsendable(spec: RunSpec, keep_text: bool = False) -> str:
    """Why ``spec``, which cannot be changed without becoming another, is nothing for others; "" if it is.

    A model that has a ``config_hash`` can be called otherwise (:func:`sendable`). With ``keep_text`` texts must be
    plain names, without it zobench's own.
    """
    renamed = ("name", "model_path", *(["model"] if spec.config_hash else []))
    changed = {"task_file", *(() if keep_text else renamed)}
    for field, value in flat(spec.to_dict()).items():
        if not isinstance(value, str) or value == "" or field in changed:
            continue
        if not re.fullmatch(_NAMED.get(field, rf"{_NAME}(/{_NAME})?"), value):
            return f"its {field} must be a plain name, which others can have too, but is {value[:80]!r}"
        allowed = _OPTION_WORDS if field.startswith("options.") else _builtin_names().get(field, {value})
        if not keep_text and value not in allowed:
            return f"its {field} must be one of zobench's own, but is {value[:80]!r}; --keep-text sends it"
    return ""


@functools.cache
def _builtin_names() -> Mapping[str, frozenset[str]]:
    """The words of zobench's own by the field of a spec that has them; of other fields :class:`RunSpec` checks them."""
    registries = {"model": MODELS, "method": METHODS, "scheme": SCHEMES, "task": TASKS, "program": PROGRAMS}
    names = {field: frozenset(entry.name for entry in registry.builtin()) for field, registry in registries.items()}
    return {**names, "task": names["task"] | {"none"}, "weights_path": names["model"]}


@functools.cache
def _parts(keep_text: bool) -> Mapping[str, Form]:
    text: Form = _as_it_is if keep_text else _left_out
    return {
        "environment": _environment(text),
        "samples": _numbers(*_SAMPLES),
        "warmup": _numbers(*_SAMPLES),
        "memory": _numbers(*_MEMORY),
        "power": _fields(_of(_POWER) | {"throttle_reasons": _items(_form("|".join(map(re.escape, THROTTLE.values())))),
                                        "notes": text}),
        "parts": _numbers(*_PARTS),
        "timeline": lambda rows: [
            [*(word if word in _EVENTS else "other" for word in row[:2]), *row[2:]] for row in rows
        ],
        "trace": _numbers("seconds", "rss_bytes", "device_bytes"),
        "evaluation": _evaluation(text),
        "warnings": _as_it_is if keep_text else _disturbances,
        "reason": _as_it_is if keep_text else lambda reason: NOT_SENT if reason else "",
        "traceback": _as_it_is if keep_text else lambda _: "",
    }  # fmt: skip


def _environment(text: Form) -> Form:
    version, device = _form(_VERSION), _form(_NAMED["device"])
    gpu = _of(_GPU_FACTS) | {"name": _words(_GPU), "driver": version}
    versions = _fields(dict.fromkeys((*PACKAGES, "python", "zobench"), version))
    hardware = _fields({
        **_of(("cores", "memory_gib")), "cpu": _words(_CPU), "gpus": _items(_fields({**gpu, "driver": _left_out})),
    })  # fmt: skip
    ranks = _fields({**_of(("rank", "node", "threads", *_MEMORY)), "device": device, "machine": _machine})
    programs = "|".join(map(re.escape, _builtin_names()["program"]))
    program = _form(rf"({programs}) [0-9a-f]{{7}}(\+[0-9a-f]{{7}})?(, (torch|transformers|Python) {_VERSION})*")
    texts = text if text is _as_it_is else None
    options = {
        name: lambda value: value if value in _OPTION_WORDS else _number(value)
        for method in METHODS.builtin()
        for name in method.options
    }
    shown = _fields({
        **_of(_FACTS), "machine": _machine, "hardware": hardware, "software": versions, "versions": versions,
        "device": device, "gpu": _fields(gpu), "cuda": _form(rf"(ROCm )?{_VERSION}"), "os": _form(_OS),
        "cpu_flags": _items(_form("|".join(CPU_FLAGS))), "ranks": _items(ranks), "program": texts or program,
        "source": _fields({"commit": _form("[0-9a-f]{7,40}"), "dirty": _number}),
        "calibration": _fields({**_of(_RATES, _tree), "notes": text}),
        "writeback_plan": _fields({"steps": _number, "reason": lambda reason: _or(text(reason), NOT_SENT)}),
        "plug_ins": texts or _fields({"program": program}), "options": texts or _fields(options),
        "notes": text, "definition": text, "threads_reason": text, "transfers": text, "attention": text,
        "journal_sha256": _form("[0-9a-f]{64}"),
    })  # fmt: skip

    def form(environment: Facts) -> Facts:
        kept: dict[str, Any] = shown(environment.to_dict())
        machine = {"gpus": [], **(kept.get("hardware") or {})}
        if machine.keys() >= {"cpu", "cores", "memory_gib"} and all(
            {"name", "memory_mib"} <= gpu_facts.keys() for gpu_facts in machine["gpus"]
        ):
            kept["description"] = describe(machine)
        return Facts.from_dict(kept)

    return form


def _evaluation(text: Form) -> Form:
    def form(evaluation: Mapping[str, Any]) -> dict[str, Any]:
        if not evaluation:
            return {}
        point = _numbers("step", "count", "loss", *SCORES)
        counts = _numbers(*_SPLITS)
        task = _of(("longest",)) | dict.fromkeys(("available", "counts", "truncated", "seeds"), counts)
        sent = dict(_fields({
            "curve": _numbers_alone, "start": point, "best": point, "test": point, "majority": _numbers("dev", "test"),
            EXAMPLES: _fields(dict.fromkeys(("right", "loss"), _form(r"[A-Za-z0-9+/]{1,200000}={0,2}"))),
            "scores": _items(_form("|".join(SCORES))), "definition": lambda definition: _or(text(definition), ""),
            "task": _fields(task | dict.fromkeys(("candidates", "labels", "sources", "notes", "task"), text)),
            "tokenizer": text,
        })(evaluation))  # fmt: skip
        try:
            unpacked(sent)
        except ValueError:  # base64 of another length than its examples have is some other text
            sent.pop(EXAMPLES)
        return sent

    return form


def _disturbances(warnings: list[str]) -> list[str]:
    """The warnings that say how much its times count, which readers rely on; the rest of one that is not of zobench's
    own form is left out."""
    return [
        warning if any(re.fullmatch(form, warning) for form in _WARNINGS) else f"{begin}{NOT_SENT}"
        for warning in warnings
        for begin in (DISTURBED, FEWER, DOUBTFUL)
        if warning.startswith(begin)
    ]


def _machine(value: Any) -> Any:
    """The id of a machine without those of its words that are no part of a maker's name for a processor."""
    if not isinstance(value, str) or not re.fullmatch(MACHINE, value):
        return _OUT
    *words, cores, digest = value.split("-")
    kept = [word for word in words if re.fullmatch(_ID, word)]
    return "-".join((*(kept or ["cpu"]), cores, digest))


def _left_out(_: Any) -> Any:
    return _OUT


def _as_it_is(value: Any) -> Any:
    return value


def _or(value: Any, other: str) -> Any:
    return other if value is _OUT else value


def _number(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | None) else _OUT


def _numbers_alone(value: Any) -> Any:
    """A number, or lists of numbers."""
    return _items(_numbers_alone)(value) if isinstance(value, list) else _number(value)


def _tree(value: Any) -> Any:
    """A number, or a table of the words of a machine's rates."""
    return _fields(_of(_RATES, _tree))(value) if isinstance(value, dict) else _number(value)


def _form(pattern: str) -> Form:
    """Text that is of ``pattern`` from its first character to its last; also None."""
    whole = re.compile(pattern, re.ASCII)
    return lambda value: value if value is None or (isinstance(value, str) and whole.fullmatch(value)) else _OUT


def _words(pattern: str) -> Form:
    """Text without those of its words that are not of ``pattern``."""
    whole = re.compile(pattern, re.ASCII)
    return lambda value: " ".join(filter(whole.fullmatch, value.split()[:20])) if isinstance(value, str) else _OUT


def _items(form: Form) -> Form:
    """A list without those of its items that are not of ``form``; also None."""

    def kept(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return None if value is None else _OUT
        return [item for item in map(form, value) if item is not _OUT]

    return kept


def _fields(forms: Mapping[str, Form]) -> Form:
    """A table with the keys of ``forms`` alone, where their values are of those forms; also None."""

    def kept(value: Any) -> Any:
        if not isinstance(value, dict):
            return None if value is None else _OUT
        named = {key: forms[key](item) for key, item in value.items() if key in forms}
        return {key: item for key, item in named.items() if item is not _OUT}

    return kept


def _of(names: tuple[str, ...], form: Form = _number) -> dict[str, Form]:
    return dict.fromkeys(names, form)


def _numbers(*names: str) -> Form:
    """A table of these ``names`` with numbers, or lists of numbers."""
    return _fields(_of(names, _numbers_alone))
