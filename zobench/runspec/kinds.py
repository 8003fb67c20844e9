"""Kinds: what others need to know of the methods, schemes, engines, tiers, wire formats, noises, granularities and
autocasts that a spec names, as frozen data, so that nobody compares names.

They import no torch. What does is named as ``module:attribute`` and imported when a run begins
(:func:`zobench.runspec.registry.resolve`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from zobench.runspec.registry import Named

K = TypeVar("K", bound=Named)

ZO_STEPS, FO_STEPS = 20_000, 625
"""Steps of a fine-tuning run by a zeroth-order and by a first-order method (MeZO; ZO-Bench, section 4)."""


class SpecFields(Protocol):
    """A spec (:class:`zobench.runspec.RunSpec`) as kinds and constraints see it, on which it is built."""

    @property
    def definition(self) -> str:
        """Which of a method's definitions runs: "as-written" or "as-shipped"."""

    @property
    def queries(self) -> int:
        """Directions z of a step."""

    @property
    def sparsity(self) -> float:
        """The share of the weights that stay, of zo-sgd-sparse and sparse-mezo."""

    @property
    def zo_layers(self) -> int:
        """The number of hybrid's lowest layers, which move without backpropagation."""

    def value(self, key: str) -> Any:
        """The value of any field, or of the option ``options.NAME``."""

    def option(self, name: str) -> Any:
        """The value of an option, its default where it is not given."""


@dataclass(frozen=True, slots=True)
class Need:
    """A run needs field ``name`` to be ``value``, one of a tuple, or a function of the spec; ``remedy`` ends errors."""

    name: str
    value: Any
    remedy: str

    def allowed(self, spec: SpecFields) -> tuple[Any, ...]:
        """The values that the field may have in ``spec``."""
        value = self.value(spec) if callable(self.value) else self.value
        return value if isinstance(value, tuple) else (value,)


class UpdateSize(Enum):
    """The size of the update of one weight, where g alone gives it; the value is its formula."""

    SCALED = "lr * g"
    SIGN = "lr"
    OTHER = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Definition:
    """One definition of a method: its paper's formula, or what its published program computes.

    ``formula``: one line, what is done each step; ghat is the mean of g z. ``make`` names a function of the spec that
    gives the method (:class:`zobench.methods.base.Method`); ``rule`` one that gives the engine's update rule
    (:class:`zobench.engine.updates.rules.UpdateRule`), None for SGD's. ``state_width``: bytes of an element of the
    state, None if it is as wide as what is tuned. ``copies``: float32 copies of a tensor that its update makes at once;
    ``piece_copies``: of a piece with counter noise, with the weights in float32 and z.
    """

    formula: str
    make: str
    rule: str | None = None
    state_width: int | None = 4
    copies: int = 0
    piece_copies: int = 0
    update: UpdateSize = UpdateSize.OTHER


@dataclass(frozen=True, kw_only=True, slots=True)
class Structure:
    """Directions that have low rank in every matrix. ``make`` names a function of the spec that gives them
    (:class:`zobench.engine.directions.factors.LowRank`), ``rank`` is their rank, and ``lasts`` the steps that share a
    subspace: so long updates stay beside the weights.

    Of a matrix of so many rows and columns, and the rank: the numbers that each direction draws, ``per_direction``, and
    those that a subspace has, ``shared``; the products (rows, inner, columns) of an ``update`` beside a sum. That takes
    so many ``update_kernels`` besides, ``vector_kernels`` for any other tensor. Of z = A F B: ``shares_inner``, whether
    all points of a subspace multiply by one B; ``has_core``, whether A F is made at each of them; ``orthonormal``, how
    many matrices with orthonormal columns a subspace begins with. ``states``: tensors like a direction's own numbers
    that a rule keeps on the device. ``is_apart``: each direction has a subspace of its own, as a population's; what its
    members see together is counted in whole batches by :attr:`MethodKind.singles`.
    """

    make: str
    rank: Callable[[SpecFields], int]
    lasts: Callable[[SpecFields], int]
    per_direction: Callable[[int, int, int], int] = lambda rows, columns, rank: rank * rows
    shared: Callable[[int, int, int], int] = lambda rows, columns, rank: rank * columns
    update: Callable[[int, int, int], Sequence[tuple[int, int, int]]] = lambda rows, columns, rank: ()
    update_kernels: int = 0
    vector_kernels: int = 0
    shares_inner: bool = True
    has_core: bool = False
    orthonormal: int = 0
    states: int = 0
    is_apart: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodKind:
    """One method: how it is made, what its steps do, and what it asks of the fields of a spec.

    Made: ``as_written`` is its paper's definition, ``as_shipped`` its published program's where that computes something
    else. ``engine`` names what builds the engine that it steps (:mod:`zobench.methods.engines`), ``thresholds`` what
    gives those of its sparse directions (:func:`zobench.methods.thresholds`), ``structure`` says which it has that are
    not drawn element by element.

    A step: ``pairs`` of points in its first pass over the model, of the spec and the model's layers; ``singles``, other
    points of that pass, of the spec; ``candidates``, points of a second pass that are no pairs; ``tangents``: it
    computes g by forward-mode differentiation, a pass for each query; ``gradients``: the share of the layers that its
    backward pass goes through, None if it has no backward pass. Per query it has ``updates`` in its journal, of the
    spec, and draws z ``draws`` times with torch noise, if that is one update, and ``counter_draws`` times, and once for
    every pending update, with counter noise; z is made of ``normals`` normal numbers per element. ``moved_along`` gives
    the seed of an update from the spec, the step and the seed of the direction that was measured; mostly that itself.
    It takes every block to the device ``uploads`` times. ``states``: copies of what is tuned that it keeps, beside the
    weights at rest unless it backpropagates. ``optimizer``: of a method that draws no z, (times a tuned weight's width
    that its update by gradients reads and writes, kernels for each tensor).

    Said: ``known_as``, what papers call it too, in small letters.

    Fields: ``needs`` in the order in which they are checked; ``takes``: those that are for it and its like alone;
    ``options``: its own constants in ``RunSpec.options``, with their defaults, or an
    :class:`~zobench.runspec.options.Option` with a range. ``scheme``: what it tunes itself, where that is neither all
    weights nor an adapter. ``grid``: the family in ``grids.toml``, of whose fields it has no use for ``unused``;
    ``steps``: of a fine-tuning run. ``nothing``: what a spec comes to whose constants leave nothing of the method, or
    None.
    """

    name: str
    as_written: Definition
    as_shipped: Definition | None = None
    known_as: tuple[str, ...] = ()
    engine: str = "zobench.methods.engines:streaming"
    thresholds: str | None = None
    structure: Structure | None = None
    pairs: Callable[[SpecFields, int], int] = lambda spec, layers: spec.queries
    singles: Callable[[SpecFields], int] | None = None
    candidates: int = 0
    tangents: bool = False
    gradients: Callable[[SpecFields, int], float] | None = None
    updates: Callable[[SpecFields], int] = lambda spec: 1
    moved_along: Callable[[SpecFields, int, int], int] = lambda spec, step, seed: seed
    draws: int = 4
    counter_draws: int = 1
    normals: int = 1
    uploads: int = 1
    states: int = 0
    optimizer: Callable[[SpecFields], tuple[int, int]] = lambda spec: (0, 0)
    needs: tuple[Need, ...] = ()
    takes: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    scheme: SchemeKind | None = None
    grid: str = "zo"
    unused: tuple[str, ...] = ()
    steps: int = ZO_STEPS
    nothing: Callable[[SpecFields], str | None] = lambda spec: None

    def definition(self, spec: SpecFields) -> Definition:
        """The one that ``spec`` asks for."""
        if spec.definition == "as-written":
            return self.as_written
        assert self.as_shipped is not None, f"{self.name} has no published program of its own"
        return self.as_shipped

    def changes(self, spec: SpecFields) -> dict[str, Any]:
        """The values of those fields of ``spec``, which is of another method, that this one needs otherwise."""
        allowed = {need.name: need.allowed(spec) for need in self.needs}
        return {name: values[0] for name, values in allowed.items() if spec.value(name) not in values}

    @property
    def backpropagates(self) -> bool:
        """Whether it has a backward pass at all: its model is resident, and its changes are in no journal."""
        return self.gradients is not None

    @property
    def travelling_states(self) -> int:
        """Copies of state that rest and travel with the weights."""
        return 0 if self.backpropagates else self.states

    def looks(self, spec: SpecFields, layers: int, signs: int = 1) -> float:
        """Losses of its whole batch that a rank computes in a step, of whose pairs ``signs`` ranks share the signs."""
        count = 2 * self.pairs(spec, layers) / signs + self.candidates + (self.singles(spec) if self.singles else 0)
        return count + spec.queries * self.tangents + self.backpropagates

    @property
    def has_pairs(self) -> bool:
        """Whether g is a difference of two losses, which two ranks can compute."""
        return not self.backpropagates and not self.tangents and self.singles is None


@dataclass(frozen=True, kw_only=True, slots=True)
class Widths:
    """Numbers of a model that the size of an adapter depends on: its layers, the widths of a token's hidden vector,
    queries, and keys or values in all heads together, and the elements of a block's ``matrices``."""

    layers: int
    hidden: int
    queries: int
    values: int
    matrices: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemeKind:
    """A kind of scheme, which says which weights are tuned. ``make`` names a function of the spec and the model that
    gives the scheme (:class:`zobench.schemes.base.Scheme`). ``adapter``: parameters that it adds to each block, and
    outside the blocks; None if all weights are tuned and none are added; ``tuned_width``: bytes of each.
    ``virtual_tokens``: positions that it takes before the tokens' own. ``inputs``: float32 layers in each block that
    keep their input for a backward pass. ``base``: bytes that stay of each element of a block's matrices, where these
    are kept in another form. ``peft``: whether that package makes it. ``about``: what is tuned, for people."""

    name: str
    make: str
    about: str = ""
    adapter: Callable[[Widths, SpecFields], tuple[int, int]] | None = None
    tuned_width: int = 4
    virtual_tokens: int = 0
    inputs: int = 0
    base: Callable[[SpecFields], float] | None = None
    peft: bool = False

    @property
    def tunes_all(self) -> bool:
        """Whether the model's own weights are tuned; else they are frozen and an adapter is."""
        return self.adapter is None


def _by_name(*kinds: K) -> Mapping[str, K]:
    return MappingProxyType({kind.name: kind for kind in kinds})


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineKind:
    """The engine that holds the blocks. ``is_streamed``: uploaded from a tier for each pass; else all on the device."""

    name: str
    is_streamed: bool


ENGINES = _by_name(EngineKind(name="resident", is_streamed=False), EngineKind(name="offload", is_streamed=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class TierKind:
    """Where blocks rest. ``is_file``: in a file of each rank's own, read and written at one shared rate. ``is_shared``:
    in host memory, one copy for the ranks of a node; ``is_pinned``: which a CUDA device reads itself. ``is_filled``: it
    is written before the first step; else it is there already, and only read."""

    name: str
    is_file: bool = False
    is_shared: bool = False
    is_pinned: bool = False
    is_filled: bool = True

    @property
    def is_streamed(self) -> bool:
        """Whether offloaded blocks can rest there."""
        return self.is_file or self.is_shared


TIERS = _by_name(
    TierKind(name="auto"),
    TierKind(name="device"),
    TierKind(name="pinned", is_shared=True, is_pinned=True),
    TierKind(name="pageable", is_shared=True),
    TierKind(name="disk", is_file=True),
    TierKind(name="checkpoint", is_file=True, is_filled=False),
)
"""Every tier by its name; "auto" is one of the others once a spec is resolved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WireKind:
    """The format of weights at rest and on the link. ``is_packed``: other than on the device; ``is_scaled``: with a
    float32 scale for each row of a matrix. ``bits``: of an integer; then ``group`` values in a row share a 16-bit
    scale, and what rests is only read, as an update is far below a step of the grid: updates stay in the journal."""

    name: str
    is_packed: bool = True
    is_scaled: bool = False
    bits: int = 0
    group: int = 0

    @property
    def is_read_only(self) -> bool:
        """Whether weights at rest stay as they were first packed."""
        return self.bits > 0

    @property
    def needs_fp32(self) -> bool:
        """Whether it is narrower than float32 alone: 16-bit weights cannot be packed into it."""
        return self.is_packed and not self.is_scaled and not self.bits

    def width(self, dtype: str) -> float:
        """Bytes of one weight of a model in ``dtype`` at rest, with its share of a group's scale."""
        if self.bits:
            return self.bits / 8 + SCALE_WIDTH / self.group
        return WIDTHS[self.name if self.is_packed else dtype]


SCALE_WIDTH = 2  # bytes of the scale of a group of integers, a bfloat16
GROUPS = (64, 32, 128)  # values that can share a scale; the first is the one of ``int8`` and ``int4``

WIRES = _by_name(
    WireKind(name="none", is_packed=False),
    WireKind(name="fp16"),
    WireKind(name="bf16"),
    WireKind(name="fp8", is_scaled=True),
    *(
        WireKind(name=f"int{bits}" + ("" if group == GROUPS[0] else f"-g{group}"), bits=bits, group=group)
        for bits in (8, 4)
        for group in GROUPS
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class NoiseKind:
    """The noise that gives z. ``in_place``: drawn from one stream for all weights, which are themselves moved to W + c
    z; else any piece of z can be drawn alone, and W + c z is made beside W. ``is_stored``: a step draws z once and
    keeps it (ZO-Bench, appendix C.1: vanilla ZO-SGD, Forward-Grad); else it is drawn again for each use."""

    name: str
    in_place: bool
    is_stored: bool = False

    def draws(self, uses: int) -> int:
        """The number of times that z is drawn for so many ``uses`` of it in a step."""
        return min(uses, 1) if self.is_stored else uses


NOISES = _by_name(
    NoiseKind(name="torch", in_place=True),
    NoiseKind(name="counter", in_place=False),
    NoiseKind(name="stored", in_place=True, is_stored=True),
)

LAWS: Mapping[str, int] = MappingProxyType({"normal": 0, "rademacher": 1 << 62})
"""The laws of a direction's elements: what a seed has beside its number (:data:`zobench.kernels.philox.SIGNS`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GranularityKind:
    """The piece of the model that a slot holds: a transformer block (``is_block``), a linear layer of it, or some of
    its rows (``is_cut``)."""

    name: str
    is_block: bool = False
    is_cut: bool = False


GRANULARITIES = _by_name(
    GranularityKind(name="block", is_block=True),
    GranularityKind(name="linear"),
    GranularityKind(name="tile", is_cut=True),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class AutocastKind:
    """The precision of products of float32 weights: cast to 16 bits, TF32 (CUDA devices only), or neither."""

    name: str
    is_cast: bool = False
    is_tf32: bool = False


AUTOCASTS = _by_name(
    AutocastKind(name="none"),
    AutocastKind(name="fp16", is_cast=True),
    AutocastKind(name="bf16", is_cast=True),
    AutocastKind(name="tf32", is_tf32=True),
)

WIDTHS: Mapping[str, int] = MappingProxyType({"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1})
"""Bytes of one weight by dtype or wire format; fp8's scales (one per row) are below a thousandth of its values."""
