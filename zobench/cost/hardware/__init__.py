"""GPUs as data: what their data sheets say and what of it is reached, each with its source and date. No torch.

A GPU is one TOML file, here or a user's own: a ``name``, perhaps names that it is ``also`` called by, ``errors``, one
of :data:`ERRORS`, a ``caution``, why zobench may not run on it at all, and ``[[facts]]``, each with one ``source`` of
:data:`SOURCES`, a ``document`` and a ``date``. A later group wins over an earlier one. What a GPU's file leaves out
of :data:`SHARES` is taken from ``zobench/cost/constants.toml``.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from zobench.machine.reader import checked, not_negative, positive
from zobench.machine.texts import toml_in, toml_of
from zobench.runspec import suggestion

Errors = Literal["fitted", "anchored", "other"]
"""The constants of all GPUs were fitted on it; some were fitted to cells that ran on it; neither."""
Source = Literal["data sheet", "measured", "fitted", "guessed"]
ERRORS, SOURCES = get_args(Errors), get_args(Source)
CONSTANTS = Path(__file__).parents[1] / "constants.toml"

PEAKS: Mapping[str, float] = {
    "sms": 1, "clock_ghz": 1e9, "memory_mib": 1 << 20, "fp32_tflops": 1e12, "tf32_tflops": 1e12, "fp16_tflops": 1e12,
    "bf16_tflops": 1e12, "hbm_gbs": 1e9, "pcie_generation": 1, "pcie_lanes": 1, "nvlink_gbs": 1e9,
}  # fmt: skip
"""Keys that a GPU's file must have, in the unit of their names, and what a unit is in base units."""
SHARES: Mapping[str, float] = {
    "fp32_products": 1, "fp16_products": 1, "idle_tiles": 1, "passes": 1, "normals": 1, "counter_normals": 1,
    "losses": 1, "kernel_us": 1e-6, "link_both": 1, "link_one": 1, "pageable_gbs": 1e9, "fused_attention": 1,
    "fp32_attention": 1, "narrow_normals": 1, "malloc_us": 1e-6,
    "driver_mib": 1 << 20,
}  # fmt: skip
"""Keys that it may have."""
MAY_BE_ZERO = ("nvlink_gbs", "idle_tiles", "kernel_us", "malloc_us", "driver_mib")
LANE_BYTES = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bytes per second of one lane of PCIe, one way, by generation."""
_KEYS = {"name": str, "also": tuple[str, ...], "errors": Errors, "caution": str, "facts": list[dict[str, Any]]}
_GROUP = {"source": Source, "document": str, "date": datetime.date} | {
    key: Annotated[float, not_negative if key in MAY_BE_ZERO else positive] for key in (*PEAKS, *SHARES)
}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a number comes from: one of :data:`SOURCES`, the document, the day."""

    source: str
    document: str
    date: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU in base units: bytes, seconds, operations.

    ``caution``: why zobench may not run on it, whatever is predicted, or "".
    ``errors``: whose held-out errors are those of predictions for it, one of :data:`ERRORS`. Of the data sheet:
    ``sms``, streaming multiprocessors; ``clock`` in Hz; ``memory``, bytes that programs can have;
    peaks ``fp32``, ``tf32``, ``fp16``, ``bf16`` in FLOP/s, dense, with float32 sums; ``hbm`` in bytes/s; ``nvlink`` in
    bytes/s, one way, 0 for none. Reached: ``fp32_products`` and ``fp16_products``, shares of the peaks by large
    products; ``idle_tiles``, the share of a last wave of tiles that a product wastes; ``passes``, the share of ``hbm``
    by elementwise passes, and ``losses``, the share of that by passes over logits; ``normals`` and ``counter_normals``,
    numbers per multiprocessor and clock drawn by torch and by the counter kernels; ``kernel``, seconds that a kernel
    costs beside its work; ``link_both`` and ``link_one``, shares of PCIe's rate by pinned copies each way with both
    directions or one in use; ``pageable``, bytes/s of pageable copies, both ways together; ``fused_attention`` and
    ``fp32_attention``, its share of a product's rate in 16 and 32 bits; ``narrow_normals``, normals in 16 bits in the
    time of one in 32; ``malloc``, seconds of one cudaMalloc with its cudaFree; ``touch``, seconds in which a CPU meets
    a byte of a new page; ``driver``, bytes that the driver and libraries take.
    """

    name: str
    also: tuple[str, ...] = ()
    errors: str
    caution: str = ""
    sms: float
    clock: float
    memory: float
    fp32: float
    tf32: float
    fp16: float
    bf16: float
    hbm: float
    pcie_generation: float
    pcie_lanes: float
    nvlink: float
    fp32_products: float
    fp16_products: float
    idle_tiles: float
    passes: float
    losses: float
    normals: float
    counter_normals: float
    kernel: float
    link_both: float
    link_one: float
    pageable: float
    fused_attention: float
    fp32_attention: float
    narrow_normals: float
    malloc: float
    driver: float
    touch: float = 0.0
    origins: Mapping[str, Origin] = dataclasses.field(compare=False)

    @property
    def pcie(self) -> float:
        """Bytes per second of its link, one way, by PCIe's own figures."""
        return LANE_BYTES[int(self.pcie_generation)] * self.pcie_lanes

    @property
    def was_run_on(self) -> bool:
        """Whether zobench's engine ran on one: some of its numbers were measured there."""
        return any(origin.source == "measured" for origin in self.origins.values())

    @property
    def bandwidth(self) -> float:
        """Bytes per second that elementwise passes reach."""
        return self.hbm * self.passes

    def products(self, precision: str) -> float:
        """FLOP/s that large products reach in ``precision``: fp32, tf32, fp16 or bf16."""
        peak: float = getattr(self, precision)
        return peak * (self.fp32_products if precision == "fp32" else self.fp16_products)

    def attention(self, precision: str) -> float:
        """FLOP/s that a fused kernel of attention reaches; one in TF32 there is not."""
        plain = "fp32" if precision == "tf32" else precision
        return self.products(plain) * (self.fp32_attention if plain == "fp32" else self.fused_attention)

    def normals_per_second(self, width: int = 4, *, counter: bool = False) -> float:
        """Standard normals of ``width`` bytes drawn per second, by torch's generator or by the counter kernels."""
        rate = self.sms * self.clock * (self.counter_normals if counter else self.normals)
        return rate if width >= 4 else rate * self.narrow_normals

    def behind(self, generation: int, lanes: int) -> Gpu:
        """It in a slot of ``lanes`` lanes of PCIe ``generation``: the slower of card and host counts."""
        slots = min((self.pcie, self.pcie_generation, self.pcie_lanes),
                   (LANE_BYTES[generation] * lanes, float(generation), float(lanes)))  # fmt: skip
        return dataclasses.replace(self, pcie_generation=slots[1], pcie_lanes=slots[2])


def malloc() -> float:
    """Seconds of one cudaMalloc with its cudaFree, of any GPU."""
    return _constants()[0]["malloc_us"]


def names() -> list[str]:
    """The names of the GPUs that zobench knows, sorted."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.toml"))


def load(name: str, *, anchored: bool = True) -> Gpu:
    """The GPU called ``name`` (``rtx-4090``), or that of a file ``FILE.toml``; not ``anchored``: without what was
    fitted to cells that ran on it. Raises a ``ValueError`` of one line for an unknown name and any mistake in a file.
    """
    return _read(_path(name), anchored)


@functools.cache
def _by_name() -> Mapping[str, Path]:
    """All names of all GPUs, in lower case."""
    paths = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.toml"))}
    others = {also.lower(): path for path in paths.values() for also in toml_of(path).get("also", ())}
    return {**others, **paths}


def _path(name: str) -> Path:
    if name.endswith(".toml"):
        if not (path := Path(name).absolute()).is_file():
            raise ValueError(f"`--gpu` must be a GPU or a file, but there is no {name}; known: {', '.join(names())}")
        return path
    by_name = _by_name()
    if (match := by_name.get(name.strip().lower().replace(" ", "-"))) is None:
        raise ValueError(f"unknown GPU {name!r}; {suggestion(name.lower(), names())}")
    return match


@functools.cache
def _read(path: Path, anchored: bool) -> Gpu:
    with toml_in(path) as data:
        body = checked(data, _KEYS, "the file", ("name", "facts"))
        errors = body.pop("errors", "other")
        if errors == "anchored" and not anchored:
            errors = "other"
        values, origins = _facts(body.pop("facts"), anchored)
        if missing := [key for key in PEAKS if key not in values]:
            raise ValueError(f"`{missing[0]}` must be given, but is not; add it to [[facts]]")
        shared, shared_origins = _constants()
        values, origins = {**shared, **values}, {**shared_origins, **origins}
        if values["pcie_generation"] not in LANE_BYTES:
            generations = ", ".join(map(str, LANE_BYTES))
            raise ValueError(f"`pcie_generation` must be one of {generations}, but got {values['pcie_generation']:g}")
        reached: dict[str, Any] = {plain(key): value for key, value in values.items()}
        return Gpu(errors=errors, origins=origins, **body, **reached)


@functools.cache
def _constants() -> tuple[dict[str, float], dict[str, Origin]]:
    return _facts(toml_of(CONSTANTS)["facts"], anchored=True)


def _facts(groups: Sequence[Any], anchored: bool) -> tuple[dict[str, float], dict[str, Origin]]:
    """Key -> value in base units, and key -> origin, of all ``[[facts]]``."""
    values: dict[str, float] = {}
    origins: dict[str, Origin] = {}
    units = {**PEAKS, **SHARES}
    for group in groups:
        stated = checked(group, _GROUP, "[[facts]]", ("source", "document", "date"))
        origin = Origin(stated.pop("source"), stated.pop("document"), stated.pop("date").isoformat())
        if anchored or origin.source not in ("fitted", "measured"):
            values |= {key: float(value) * units[key] for key, value in stated.items()}
            origins |= dict.fromkeys(stated, origin)
    return values, origins


def plain(key: str) -> str:
    """``key`` without its unit, as :class:`Gpu` has it in base units: ``clock_ghz`` is ``clock``."""
    return re.sub("_(ghz|mib|tflops|gbs|us)$", "", key)
