"""RunSpec: one cell of a matrix, frozen, validated, hashed from canonical JSON."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from zobench.runspec import registries
from zobench.runspec.constraints import check_constraints
from zobench.runspec.fields import (
    FileField,
    LabelForm,
    RegistryField,
    SwitchField,
    TableField,
    TextField,
    WordField,
    declare,
    declared,
    field_of,
    options_of,
)
from zobench.runspec.kinds import AUTOCASTS, ENGINES, GRANULARITIES, LAWS, NOISES, TIERS, WIRES
from zobench.runspec.numeric import IntervalField, NumberField, SizeField
from zobench.runspec.options import Option, Options, nested, settled
from zobench.runspec.words import SEQ_LEN, SIGNED, check_keywords

NEVER, VALUE, PAIR, _, CONTRAST = LabelForm


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSpec:
    """Everything that decides what one cell computes. Units: tokens, steps, bytes; lr and eps as in MeZO. The defaults
    are the papers' configuration: MeZO's in-place arithmetic on torch's noise, a block per transfer, written back after
    every step. What is declared of each field here is all that anyone knows of it:
    :class:`~zobench.runspec.fields.SpecField`.

    With a ``task`` the run is a fine-tuning run: ``seq_len`` bounds an example's tokens, ``shots`` examples per class
    train it (0: ``train_size`` and ``dev_size`` in all). A task of one's own is ``FILE.toml``, which becomes
    ``NAME@FINGERPRINT`` and the place ``task_file`` (docs/data.md). ``gpus`` devices (on a CPU processes) on ``nodes``
    machines share a step of ``batch_size`` rows as ``parallel`` says (DistZO2). ``options`` are constants of plug-ins,
    only those that are not at their defaults; :meth:`option` knows all. A ``model`` that is not in the list is a
    folder, a hub id or a GGUF file until :func:`zobench.models.identified` has found it: then ``model`` is the name
    that is shown, ``model_path`` what was given, and the hashes say what it is. Raises ``ValueError`` with the
    constraint, the value and the remedy for any value that cannot run.
    """

    # fmt: off
    model: str = declare(TextField(
        "OPT-125M", "the model: of `zobench list models`, or a folder with its config.json, a hub id, a file.gguf",
        always_hashed=True, required=True, label=NEVER, free=True, form=".+", form_noun="a name",
        remedy="see `zobench list models`",
    ))
    weights: str = declare(WordField(
        "random", "where the first weights come from; shared: few blocks stand for all, for time and memory only",
        always_hashed=True, allowed=("random", "pretrained", "shared"), order=2, free=True,
    ))
    weights_path: str = declare(TextField(
        "", "the folder of a pretrained checkpoint, in place of the hub", always_hashed=True, label=NEVER, free=True,
    ))
    tie_embeddings: bool | None = declare(SwitchField[bool | None](
        None, "whether embedding and head are one tensor; none: as published", always_hashed=True, label=PAIR, order=2,
        free=True,
    ))
    engine: str = declare(WordField(
        "resident", "whether the blocks stay on the device or are streamed through it", always_hashed=True,
        allowed=tuple(ENGINES), label=NEVER, paced=True,
    ))
    tier: str = declare(WordField(
        "auto", "where offloaded blocks rest", always_hashed=True, allowed=tuple(TIERS), label=NEVER, free=True,
        paced=True,
    ))
    dtype: str = declare(WordField(
        "fp32", "the type of the weights on the device", always_hashed=True, allowed=("fp32", "fp16", "bf16"),
        label=NEVER, paced=True,
    ))
    batch_size: int = declare(NumberField(
        1, "sequences of a step, of all ranks together", always_hashed=True, lowest=1, label=NEVER,
        remedy="the papers use batch_size=1",
    ))
    accumulate: int = declare(NumberField(
        1, "micro-batches that a step's sequences are cut into, at the same points, for one g; memory is that of one",
        lowest=1, remedy="use accumulate=1 for the whole batch at once",
    ))
    seq_len: int = declare(NumberField(
        SEQ_LEN, "tokens of a sequence; with a task the most of an example", always_hashed=True, lowest=2, label=NEVER,
        of_task=True, remedy="a causal loss needs two tokens; the papers use seq_len=2048",
    ))
    steps: int = declare(NumberField(
        5, "steps that are measured or train", always_hashed=True, lowest=1, label=CONTRAST, free=True, incidental=True,
        remedy="ask for at least one measured step",
    ))
    warmup: int = declare(NumberField(
        1, "steps before them that are not measured", always_hashed=True, lowest=0, label=CONTRAST, free=True,
        incidental=True, remedy="use warmup=0 to measure from the first step",
    ))
    seed: int = declare(NumberField(
        0, "of the data, the weights and the directions", always_hashed=True, lowest=0, free=True, incidental=True,
        remedy="seeds are 0, 1, 2, ...",
    ))
    lr: float = declare(NumberField(
        1e-7, "the learning rate", always_hashed=True, lowest=0, free=True, remedy="MeZO uses lr=1e-7 to 1e-5",
    ))
    eps: float = declare(NumberField(
        1e-3, "the perturbation scale", always_hashed=True, above=0, free=True, remedy="MeZO uses eps=1e-3",
    ))
    weight_decay: float = declare(NumberField(
        0.0, "the weight decay", always_hashed=True, lowest=0, remedy="MeZO uses weight_decay=0",
    ))
    queries: int = declare(NumberField(
        1, "directions z of a step; one upload serves all", lowest=1, highest=10_000, remedy="the papers use queries=1",
    ))
    noise: str = declare(WordField(
        "torch",
        "how z is drawn: MeZO's in-place arithmetic on torch's noise, the same with z stored for the step, or a "
        "counter that makes any part of z", always_hashed=True, allowed=tuple(NOISES), label=VALUE, paced=True,
    ))
    law: str = declare(WordField(
        "normal", "of the elements of z: normal numbers, or random signs, which cost a bit each (FZOO)",
        allowed=tuple(LAWS), label=VALUE, paced=True,
    ))
    granularity: str = declare(WordField("block", "what a slot holds", allowed=tuple(GRANULARITIES), label=VALUE))
    writeback_every: int | str = declare(IntervalField(
        1, "steps between two write-backs of a block", lowest=1,
        remedy="the papers use writeback_every=1; inf never writes a block back",
    ))
    wire: str = declare(WordField(
        "none", "the format at rest and on the link, where it is not dtype", allowed=tuple(WIRES),
    ))
    autocast: str = declare(WordField(
        "none", "the precision of the products, where it is not dtype", allowed=tuple(AUTOCASTS), paced=True,
    ))
    resident_blocks: int = declare(NumberField(
        0, "blocks that stay on the device, spread evenly", lowest=0,
        remedy="use resident_blocks=0 to stream every block",
    ))
    device_memory: int = declare(SizeField(
        0, "a limit for which a planner chooses granularity, slots and resident blocks; 0: none", lowest=0,
        remedy="use device_memory=0 for no limit",
    ))
    compile: bool = declare(SwitchField(False, "torch.compile of the blocks' forward"))
    packed: bool = declare(SwitchField(
        False, "with a task: rows are computed without padding, and what rows begin with in common once", free=True,
        paced=True,
    ))
    attention: str = declare(WordField(
        "model", "on a CPU: the model's own attention, or for each length of rows the faster of two kernels, "
        "measured when the run begins", allowed=("model", "fast"), free=True, paced=True,
    ))
    overlap: bool = declare(SwitchField(
        True, "whether transfers run beside the products (ablation)", always_hashed=True, order=1, ablated=True,
    ))
    reusable_memory: bool = declare(SwitchField(
        True, "whether slots are kept; else a transfer allocates each tensor (ablation)", always_hashed=True, order=1,
        ablated=True,
    ))
    fused_update: bool = declare(SwitchField(
        True, "whether an update waits for the next upload of its block (ablation)", always_hashed=True, order=1,
        ablated=True,
    ))
    slots: int = declare(NumberField(
        3, "blocks that are on the device at once", always_hashed=True, lowest=1, order=2,
        remedy="use slots=3 for one block uploading, one computing, one offloading",
    ))
    device: str = declare(TextField(
        "auto", "the device: auto, cpu, cuda or cuda:N", always_hashed=True, label=NEVER, free=True,
        form="auto|(cpu|cuda)(:.*)?", form_noun="auto, cpu, cuda or cuda:N", remedy="use device=auto",
    ))
    data: str = declare(WordField(
        "random", "tokens of a run without a task: sequences of one length, ragged ones, or SST-2's sentences",
        always_hashed=True, allowed=("random", "ragged", "sst2"), order=2,
    ))
    parts: bool = declare(SwitchField(
        False, "measure transfers alone and products alone too", always_hashed=True, label=CONTRAST, free=True,
        incidental=True,
    ))
    survival: bool = declare(SwitchField(
        False, "without a task: measure how much of the intended updates is in the weights after rounding",
        incidental=True,
    ))
    method: str = declare(RegistryField(
        "zo-sgd", "the optimization method", registry=registries.METHODS, label=VALUE, listed=True, paced=True,
    ))
    definition: str = declare(WordField(
        "as-written", "the paper's formula, or what its published program computes",
        allowed=("as-written", "as-shipped"), label=VALUE,
    ))
    momentum: float = declare(NumberField(0.9, "of zo-sgd-mmt", lowest=0, below=1, remedy="ZO-Bench uses momentum=0.9"))
    sparsity: float = declare(NumberField(
        0.0, "of zo-sgd-sparse and sparse-mezo: the share of the weights that stay", lowest=0, below=1,
        remedy="ZO-Bench uses sparsity=0.1 to 0.9",
    ))
    zo_layers: int = declare(NumberField(
        0, "of hybrid: its lowest layers, which move without backpropagation", lowest=0,
        remedy="use zo_layers=0 for backpropagation through every layer",
    ))
    checkpointing: bool = declare(SwitchField(False, "of backpropagation: activations are computed again, not kept"))
    foreach: bool = declare(SwitchField(True, "of fo-adam: all tensors in one call"))
    lr_schedule: str = declare(WordField(
        "constant", "how lr changes over the steps", allowed=("constant", "linear", "cosine"),
    ))
    scheme: str = declare(RegistryField(
        "full", "what is tuned: all weights, or an adapter of peft", registry=registries.SCHEMES, label=VALUE,
        listed=True, paced=True,
    ))
    task: str = declare(FileField(
        "none", "what the model is fine-tuned to; FILE.toml is a task of one's own", registry=registries.TASKS,
        before=("none",), identity="zobench.data.tasks.file:identity", label=VALUE, listed=True, of_task=True,
    ))
    task_file: str = declare(TextField(
        "", "the file of a task of one's own, which task=FILE.toml sets", label=NEVER, free=True, incidental=True,
        unhashed=True,
    ))
    aligned: bool = declare(SwitchField(True, "whether the prompt of SST-2 or RTE is there"))
    shots: int = declare(NumberField(
        0, "examples per class that train, and as many for dev; 0: train_size and dev_size", lowest=0, of_task=True,
        remedy="use shots=16 or 512 per class, or 0 for train_size and dev_size",
    ))
    train_size: int = declare(NumberField(
        1000, "examples that train", lowest=1, of_task=True, remedy="MeZO uses train_size=1000",
    ))
    dev_size: int = declare(NumberField(
        500, "examples that choose the best weights", lowest=1, of_task=True, remedy="MeZO uses dev_size=500",
    ))
    test_size: int = declare(NumberField(
        1000, "examples of the one look at test; 0: the test set is not looked at", lowest=0, of_task=True,
        remedy="MeZO uses test_size=1000",
    ))
    eval_every: int = declare(NumberField(
        0, "steps between two evaluations on dev; 0: only at the end", lowest=0, label=CONTRAST, free=True,
        remedy="use eval_every=0 to evaluate only at the end",
    ))
    truncate: bool = declare(SwitchField(
        False, "cut longer texts from the left; without it they are refused", of_task=True,
    ))
    length_grouping: bool = declare(SwitchField(False, "put texts of similar length into a batch", of_task=True))
    gpus: int = declare(NumberField(
        1, "devices that share a step; on a CPU, processes", lowest=1, paced=True, remedy="use gpus=1 for one device",
    ))
    nodes: int = declare(NumberField(
        1, "machines that they are on", lowest=1, paced=True, remedy="use nodes=1 for one machine",
    ))
    parallel: str = declare(WordField(
        "none", "what they share out: signs of the perturbation, rows of the batch, or both (DistZO2); of first-order "
        "methods rows and weights", allowed=("none", "pertp", "ddp", "2d", "2d-outer", "fsdp"), paced=True,
    ))
    exact: bool = declare(SwitchField(
        False, "of a rank with one sign: whether it goes through the other too, so that it rounds as one device does",
        paced=True,
    ))
    transfers: str = declare(WordField(
        "auto", "whether each moves a slice of a block or uploads all of it; naive: writes all of it back too",
        allowed=("auto", "whole", "sliced", "naive"), paced=True,
    ))
    checkpoint: str = declare(WordField(
        "none", "how the weights are saved between steps", allowed=("none", "sync", "async", "journal"), paced=True,
    ))
    checkpoint_every: int = declare(NumberField(
        0, "steps between two of them", lowest=0, remedy="use checkpoint_every=0 to save nothing meanwhile",
    ))
    program: str = declare(RegistryField("zobench", "what runs the cell", registry=registries.PROGRAMS, paced=True))
    options: Mapping[str, Any] = declare(TableField(
        Options(), "constants of plug-ins, one by one as options.NAME=VALUE", paced=True,
    ))
    name: str = declare(TextField(
        "", "what tables call a model that is not in the list; as its folder", label=NEVER, free=True, incidental=True,
        unhashed=True, form=r"(\S([^\n\r\t]*\S)?)?", form_noun="one line without spaces at its ends",
        remedy='for example name="mine"',
    ))
    model_path: str = declare(TextField(
        "", "where such a model was found", label=NEVER, free=True, incidental=True, unhashed=True,
    ))
    config_hash: str = declare(TextField(
        "", "which config.json it has", label=NEVER, free=True, form="[0-9a-f]*", form_noun="hexadecimal",
        remedy="leave it out: it is computed",
    ))
    weights_hash: str = declare(TextField(
        "", "which weights it has, where they are pretrained", label=NEVER, free=True, form="[0-9a-f]*",
        form_noun="hexadecimal", remedy="leave it out: it is computed",
    ))
    # fmt: on

    def __new__(cls, **values: Any) -> RunSpec:
        """Raises ``ValueError`` for a field that does not exist, before the dataclass would with a ``TypeError``."""
        check_keywords("RunSpec", values, DECLARED)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        if str(self.task).endswith(FileField.suffix):
            object.__setattr__(self, "task_file", self.task)
        for name, field in DECLARED.items():
            if (value := getattr(self, name)) is not field.default:
                object.__setattr__(self, name, field.check(value))
        if "@" not in self.task:
            object.__setattr__(self, "task_file", "")
        if self.options:
            named = {name: getattr(self, name) for name, field in DECLARED.items() if field.names(getattr(self, name))}
            takers = ", ".join(f"{name}={value}" for name, value in named.items())
            object.__setattr__(self, "options", settled("options", self.options, options_taken(self), takers))
        if self.weights_path and self.weights != "pretrained":
            raise ValueError(
                f"`weights_path` needs weights=pretrained, but got weights={self.weights}; add --set weights=pretrained"
            )
        check_constraints(self, DECLARED)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one batch, as the papers count them (both forwards read the same tokens)."""
        return self.batch_size * self.seq_len

    def replace(self, **changes: Any) -> RunSpec:
        """A copy with ``changes``, validated again; ``options.NAME`` changes that option alone."""
        return dataclasses.replace(self, **nested({"options": self.options, **changes}))

    def resolve(self, device: str) -> RunSpec:
        """The spec as it runs on ``device``: no "auto" left, fields without effect at rest; equal runs hash alike."""
        if self.gpus > 1 and device == "cuda:0":  # the choice for one process; each rank takes its own
            device = "cuda"
        if AUTOCASTS[self.autocast].is_tf32 and not device.startswith("cuda"):
            raise ValueError(
                "`autocast=tf32` needs a CUDA device, but got device=cpu; use autocast=bf16 or autocast=none"
            )
        if device.startswith("cuda") and self.attention != "model":
            raise ValueError(
                f"`attention={self.attention}` chooses among kernels for a CPU, but got device={device}; use "
                "attention=model"
            )
        if not ENGINES[self.engine].is_streamed:
            return self.replace(device=device, **_unstreamed())
        tier = self.tier
        if tier == "auto":  # ranks share one copy in host memory, but no file
            tier = "pinned" if device.startswith("cuda") else "disk" if self.gpus == 1 else "pageable"
        if not TIERS[tier].is_streamed:
            raise ValueError(
                "`tier=device` needs engine=resident, but got engine=offload; use tier=pinned, pageable or disk"
            )
        if TIERS[tier].is_pinned and not device.startswith("cuda"):
            raise ValueError("`tier=pinned` needs a CUDA device, but got device=cpu; use tier=pageable or tier=disk")
        return self.replace(device=device, tier=tier)

    def alone(self) -> RunSpec:
        """The same run on one device, with the same batch."""
        return self.replace(gpus=1, nodes=1, parallel="none", transfers="auto", exact=False)

    def option(self, name: str) -> Any:
        """The value of an option: the given one, else its declared default; None where nothing declares it."""
        return self.options[name] if name in self.options else option_defaults(self).get(name)

    def value(self, key: str) -> Any:
        """The value of a field, or of the option ``options.NAME``."""
        name, _, part = key.partition(".")
        return self.option(part) if part else getattr(self, name)

    def to_dict(self) -> dict[str, Any]:
        """SpecField name to value, JSON types only."""
        return {name: field.plain(getattr(self, name)) for name, field in DECLARED.items()}

    def unusual(self) -> dict[str, Any]:
        """As :meth:`to_dict`, the model and those fields that are not at their defaults."""
        return {
            name: value for name, value in self.to_dict().items() if name == "model" or value != DECLARED[name].default
        }

    @classmethod
    def from_stored(cls, values: Mapping[str, Any]) -> RunSpec:
        """The spec that :meth:`to_dict` gave for a file; before ``exact`` every rank with one sign was exact."""
        if not isinstance(values, Mapping):
            raise ValueError(f"a stored spec must be a table, but is {str(values)[:40]!r}; run it again")
        if values.get("parallel") in SIGNED:
            values = {"exact": True, **values}
        return cls.from_dict(values)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunSpec:
        """The inverse of :meth:`to_dict`; ``options.NAME`` is one option. Raises ``ValueError`` for an unknown key."""
        for key in values:
            field_of(DECLARED, key)
        if "model" not in values:
            raise ValueError("`model` must be given, but got no model; see `zobench list models`")
        return cls(**nested(values))

    @property
    def hash(self) -> str:
        """12 hexadecimal digits of the SHA-256 of the canonical JSON (sorted keys, no spaces), without what is only
        shown, a model's name where its ``config_hash`` says better, and, at their defaults, fields that came after the
        first results, so that those keep their names (``exact``: at true, see :meth:`from_stored`)."""
        unhashed = {name for name, field in DECLARED.items() if field.unhashed}
        if self.config_hash:
            unhashed.add("model")
        named = {
            name: value
            for name, value in self.to_dict().items()
            if name not in unhashed and (DECLARED[name].always_hashed or value != DECLARED[name].default)
        }
        if self.parallel in SIGNED and named.pop("exact", None) is None:
            named["exact"] = False
        text = json.dumps(named, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def task_name(self) -> str:
        """The task's name for people: of a task of one's own, without its fingerprint."""
        return DECLARED["task"].shown(self.task)

    @property
    def label(self) -> str:
        """A short name for people: ``OPT-125M offload/disk fp32 b1 s2048 no_overlap slots=2 counter linear``."""
        return self.label_with()

    def label_with(self, also: Collection[str] = ()) -> str:
        """The label, in which the fields ``also`` are shown at their defaults too."""
        placed = ENGINES[self.engine].is_streamed and self.tier != "auto"
        engine = f"{self.engine}/{self.tier}" if placed else self.engine
        words = [self.model, engine, self.dtype, f"b{self.batch_size}", f"s{self.seq_len}"]
        for name, field in sorted(DECLARED.items(), key=lambda item: item[1].order):
            value = getattr(self, name)
            if name in also or (value != field.default and field.label is not CONTRAST):
                words += field.words(value)
        return " ".join(words)


def _unstreamed() -> dict[str, Any]:
    """The values of the fields about transfers for a model that is resident, which has none."""
    return {"tier": "device", "slots": 3, "parts": False} | {n: True for n, field in DECLARED.items() if field.ablated}


def check_effect(spec: RunSpec, asked: Collection[str]) -> None:
    """Raises ``ValueError`` for a field of ``asked`` that changes nothing of a resident model; a matrix may name it."""
    if ENGINES[spec.engine].is_streamed:
        return
    for name, value in _unstreamed().items():
        given = getattr(spec, name)
        if name in asked and given not in (value, DECLARED[name].default):
            raise ValueError(
                f"`{name}={DECLARED[name].write(given)}` needs engine=offload, but got engine={spec.engine}; a "
                f"resident model's blocks do not travel: use engine=offload, or leave {name} out"
            )


DECLARED = declared(RunSpec)  # what is declared of every field, by its name, in order


def options_taken(spec: RunSpec) -> Mapping[str, Option]:
    """Returns the declared options of the spec's method, scheme, task and program."""
    return options_of(DECLARED, {name: getattr(spec, name) for name in DECLARED})


def option_defaults(spec: RunSpec) -> Mapping[str, Any]:
    """The options that what the spec names takes, with their defaults."""
    return {name: option.default for name, option in options_taken(spec).items()}


def provenance(spec: RunSpec) -> dict[str, Any]:
    """Returns the facts of a result about the plug-ins that ``spec`` names, empty without any: ``plug_ins``, for each
    its package, version and a fingerprint of its module by the field that names it, and ``options``, those at their
    default too."""
    origins = {name: field.origin(getattr(spec, name)) for name, field in DECLARED.items()}
    origins["model"] = "" if spec.config_hash else registries.MODELS.origin(spec.model)
    plug_ins = {name: origin for name, origin in origins.items() if origin}
    return {"plug_ins": plug_ins, "options": {**option_defaults(spec), **spec.options}} if plug_ins else {}


def check_spec(spec: object) -> None:
    """Raises ``ValueError``, one line, unless ``spec`` is a RunSpec, as of a model's name in its place."""
    if not isinstance(spec, RunSpec):
        written = f"RunSpec(model={spec!r})" if isinstance(spec, str) else 'RunSpec(model="OPT-125M")'
        raise ValueError(f"`spec` must be a RunSpec, but got {spec!r}; write {written}")
