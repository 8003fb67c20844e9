"""The demands of a spec's fields on each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from zobench.runspec.fields import SpecField
from zobench.runspec.kinds import WIRES, MethodKind, Need, SpecFields
from zobench.runspec.registries import METHODS, TASKS
from zobench.runspec.words import SIGNED

AFTER_A_CHECKPOINT = 2
"""Steps of a measured cell that follow a checkpoint at least and are recorded: the paper's scheme goes through two."""

Fields = Mapping[str, SpecField[Any]]
"""The declarations of a spec's fields, by name."""


@dataclass(frozen=True, slots=True)
class Needs:
    """``field``, where it is one of ``values`` (none: not at its default), needs field ``needs`` to be ``value``, or
    one of them if that is a tuple, or a function of the spec that gives one."""

    field: str
    values: tuple[str, ...]
    needs: str
    value: Any
    remedy: str

    def check(self, spec: SpecFields, fields: Fields) -> None:
        """Raises ``ValueError`` if ``spec``, of these ``fields``, breaks the rule."""
        field, given = fields[self.field], spec.value(self.field)
        if given not in self.values if self.values else given == field.default:
            return
        allowed, got = Need(self.needs, self.value, self.remedy).allowed(spec), spec.value(self.needs)
        if got not in allowed:
            needed = " or ".join(map(str, allowed))
            raise ValueError(
                f"`{self.field}={field.write(given)}` needs {self.needs}={needed}, but got {self.needs}={got}; "
                f"{self.remedy}"
            )


def _needs_method(field: str, values: tuple[str, ...], has: Callable[[MethodKind], bool], remedy: str) -> Needs:
    """The rule that ``field``, as in :class:`Needs`, needs a method that ``has`` something; its error names our own."""

    def methods(spec: SpecFields) -> tuple[str, ...]:
        kinds = (*METHODS.builtin(), METHODS.get(spec.value("method")))
        return tuple(kind.name for kind in kinds if has(kind))

    return Needs(field, values, "method", methods, remedy)


def _tasks(spec: SpecFields) -> tuple[str, ...]:
    """The names of all tasks, and the name of the task of ``spec`` if it is a file's."""
    return (*TASKS.names(), *([name] if "@" in (name := spec.value("task")) else ()))


def _unaligned(spec: SpecFields) -> tuple[str, ...]:
    """Tasks that have a form without their prompt: zobench's own, and that of ``spec``."""
    name = spec.value("task")
    tasks = (TASKS.get(name),) if TASKS.provider(name) else ()
    return tuple(task.name for task in (*TASKS.builtin(), *tasks) if task.unaligned is not None)


def _takes(field: str) -> Callable[[MethodKind], bool]:
    return lambda kind: field in kind.takes


_BEFORE_METHODS = (
    Needs("weights", ("shared",), "engine", "offload", "a resident model has no host blocks to share"),
    Needs("noise", ("stored",), "engine", "resident", "z takes as much memory as what it moves; use noise=torch"),
    Needs("granularity", (), "noise", "counter", "torch noise can only be drawn a block at a time; use noise=counter"),
    Needs("law", (), "noise", "counter", "torch draws normal numbers alone; use noise=counter"),
    _needs_method("law", (), lambda kind: kind.structure is None and kind.thresholds is None and kind.scheme is None,
                  "it is about normal numbers; use law=normal"),
    Needs(
        "writeback_every", (), "noise", "counter",
        "torch noise perturbs the weights in place, so an update that is not written back cannot be exact; "
        "use noise=counter",
    ),
    Needs("wire", (), "engine", "offload", "a resident model's weights do not travel; use engine=offload"),
    Needs("wire", ("fp16", "bf16"), "dtype", "fp32", "a wire format must be narrower than dtype; use wire=fp8"),
    Needs("wire", tuple(name for name, kind in WIRES.items() if kind.is_read_only), "writeback_every", "inf",
          "an update is far below a step of its grid; use noise=counter and writeback_every=inf"),
    Needs("autocast", (), "dtype", "fp32", "16-bit weights already compute in 16 bits; use dtype=fp32"),
    Needs("tier", ("checkpoint",), "engine", "offload", "a resident model reads its checkpoint once; use tier=auto"),
    Needs("tier", ("checkpoint",), "weights", "pretrained", "only they have a checkpoint; use weights=pretrained"),
    Needs("tier", ("checkpoint",), "writeback_every", "inf", "a checkpoint is only read; use writeback_every=inf"),
    Needs("tier", ("checkpoint",), "wire", "none", "the files' own format travels; use wire=none"),
    Needs("resident_blocks", (), "engine", "offload", "a resident model keeps every block; use engine=offload"),
    Needs("device_memory", (), "engine", "offload", "a resident model takes what it takes; use engine=offload"),
    Needs("device_memory", (), "noise", "counter", "its planner may need parts of a block; use noise=counter"),
    Needs("device_memory", (), "granularity", "block", "the planner chooses it; leave granularity out"),
    Needs("device_memory", (), "slots", 3, "the planner chooses them; leave slots out"),
    Needs("device_memory", (), "resident_blocks", 0, "the planner chooses them; leave resident_blocks out"),
    Needs("device_memory", (), "compile", False, "the planner may cut blocks; use compile=false"),
    Needs("compile", (), "granularity", "block", "what is compiled is a block's forward; use compile=false"),
    Needs("survival", (), "noise", "counter", "only its z can be made again for a sample; use noise=counter"),
    _needs_method("survival", (), lambda kind: not (kind.states or kind.backpropagates),
                "other updates are no sum of g * z; use survival=false"),
    Needs(
        "fused_update", (), "writeback_every", 1,
        "without the fused update every update is written back at once; use writeback_every=1",
    ),
)  # fmt: skip
"""The rules that are checked before the needs of the spec's method, and those that are checked after them."""
_AFTER_METHODS = (
    _needs_method("definition", ("as-shipped",), lambda kind: kind.as_shipped is not None,
                  "only theirs differs; use definition=as-written"),
    *(_needs_method(name, (), _takes(name), f"no other method takes it; leave {name} out")
      for name in ("momentum", "sparsity", "zo_layers")),
    _needs_method("checkpointing", (), _takes("checkpointing"),
                  "without backpropagation nothing is kept; use checkpointing=false"),
    _needs_method("foreach", (), _takes("foreach"), "no other method takes it; leave foreach out"),
    Needs("scheme", (), "wire", "none", "only what is tuned is written back, as it is; use wire=none"),
    Needs("scheme", (), "tier", ("auto", "device", "pinned", "pageable", "disk"),
          "a checkpoint holds no adapter; use tier=disk"),
    Needs("task", (), "weights", ("pretrained", "random"), "shared weights learn nothing; use weights=pretrained"),
    Needs("task", (), "parts", False, "parts are measured without a task; use parts=false"),
    Needs("task", (), "data", "random", "a task brings its own data; leave data out"),
    *(Needs(name, (), "task", _tasks, f"only a task has it; leave {name} out")
      for name in ("shots", "train_size", "dev_size", "test_size", "eval_every", "truncate", "length_grouping",
                   "packed")),
    _needs_method("accumulate", (), lambda kind: kind.structure is None or not kind.structure.is_apart,
                  "a population's members have rows of their own; use accumulate=1"),
    Needs("accumulate", (), "gpus", 1, "the ranks share a batch out already; use accumulate=1"),
    Needs("packed", (), "checkpointing", False,
          "a block that is computed again does not know the rows; use packed=false"),
    _needs_method("packed", (), lambda kind: kind.structure is None or not kind.structure.is_apart,
                  "a population's members have rows of their own; use packed=false"),
    Needs("attention", (), "gpus", 1, "each rank would choose for itself; use attention=model"),
    Needs("attention", (), "compile", False, "what is compiled keeps one kernel; use attention=model"),
    Needs("attention", (), "scheme", ("full", "lora", "prompt"),
          "a prefix makes keys longer than queries, for which there is one kernel; use attention=model"),
    _needs_method("attention", (), lambda kind: not (kind.backpropagates or kind.tangents),
                "kernels are timed without derivatives; use attention=model"),
    Needs("aligned", (), "task", _unaligned, "only its prompt can be left out; use aligned=true"),
    _needs_method("parallel", ("ddp", *SIGNED), lambda kind: not kind.backpropagates,
                  "gradients would have to travel; use parallel=fsdp"),
    _needs_method("parallel", ("fsdp",), lambda kind: kind.backpropagates and "zo_layers" not in kind.takes,
                  "nothing else has gradients of all weights; use parallel=ddp"),
    Needs("parallel", ("fsdp",), "scheme", "full", "an adapter's gradients fit one device; use scheme=full"),
    Needs("parallel", ("fsdp",), "task", "none", "it is there for the cost of a step; fine-tune with parallel=none"),
    Needs("parallel", ("fsdp",), "checkpoint", "none", "its weights lie in shares; use checkpoint=none"),
    _needs_method("parallel", SIGNED, lambda kind: kind.has_pairs,
                  "it has no pair of points to share out; use parallel=ddp"),
    Needs("exact", (), "parallel", SIGNED, "others look at both signs anyway; leave exact out"),
    Needs("parallel", (), "survival", False, "it is a single device's look at its weights; use survival=false"),
    Needs("transfers", ("sliced", "naive"), "engine", "offload",
          "a resident model's weights do not travel; use transfers=auto"),
    Needs("transfers", ("sliced", "naive"), "tier", ("auto", "pinned", "pageable"),
         "they are of blocks in host memory that the ranks share; use tier=auto"),
    Needs("checkpoint", (), "weights", ("random", "pretrained"), "shared weights are not worth keeping; use none"),
    Needs("checkpoint", ("async",), "engine", "offload", "it saves what rests in a tier; use checkpoint=journal"),
    _needs_method("checkpoint", ("async", "journal"), lambda kind: not kind.backpropagates,
                  "what backpropagation changes is in no journal; use checkpoint=sync"),
)  # fmt: skip


def check_constraints(spec: SpecFields, fields: Fields) -> None:
    """Raises ``ValueError`` for the first rule that ``spec``, of these ``fields``, breaks."""
    method = METHODS.get(spec.value("method"))
    of_method = (Needs("method", (method.name,), need.name, need.value, need.remedy) for need in method.needs)
    for rule in (*_BEFORE_METHODS, *of_method, *_AFTER_METHODS):
        rule.check(spec, fields)
    _check_world(spec)
    kind, every = spec.value("checkpoint"), spec.value("checkpoint_every")
    if (kind != "none") != (every > 0):
        raise ValueError(
            f"`checkpoint` and `checkpoint_every` go together, but got checkpoint={kind}, "
            f"checkpoint_every={every}; use checkpoint=journal with checkpoint_every=100, or neither"
        )
    if spec.value("survival") and method.definition(spec).rule is not None:
        raise ValueError(
            f"`survival` needs a method whose update is lr * g * z, but got method={method.name}, "
            f"definition={spec.definition}; use survival=false"
        )
    batch, parts = spec.value("batch_size"), spec.value("accumulate")
    if batch % parts:
        raise ValueError(
            f"`batch_size` must be a multiple of accumulate, but got batch_size={batch}, accumulate={parts}; use "
            f"batch_size={-(-batch // parts) * parts}"
        )


def shards(parallel: str, gpus: int) -> int:
    """The number of parts into which ``gpus`` devices cut a batch."""
    return {"ddp": gpus, "fsdp": gpus, "2d": gpus // 2, "2d-outer": gpus // 2}.get(parallel, 1)


def _check_world(spec: SpecFields) -> None:
    """Whether ``gpus`` devices can share a step as ``parallel`` says (DistZO2, sections 4 to 6)."""
    gpus, nodes, parallel, batch = (spec.value(name) for name in ("gpus", "nodes", "parallel", "batch_size"))
    if (gpus > 1) != (parallel != "none"):
        raise ValueError(
            f"`gpus > 1` and `parallel` go together, but got gpus={gpus}, parallel={parallel}; use gpus=2 with pertp "
            "or ddp, gpus=4 with 2d, or gpus=1 with none"
        )
    if gpus % nodes:
        raise ValueError(
            f"`gpus` must be a multiple of nodes, but got gpus={gpus}, nodes={nodes}; "
            f"use gpus={-(-gpus // nodes) * nodes}"
        )
    if parallel == "pertp" and gpus != 2:
        raise ValueError(
            f"`parallel=pertp` needs gpus=2, one for each sign, but got gpus={gpus}; use parallel=2d for more"
        )
    if parallel in ("2d", "2d-outer") and (gpus < 4 or gpus % 2):
        raise ValueError(
            f"`parallel={parallel}` needs an even number of gpus, at least 4, but got gpus={gpus}; "
            f"use parallel=ddp, or gpus={max(4, gpus + gpus % 2)}"
        )
    if parallel == "2d" and (gpus // nodes) % 2:
        raise ValueError(
            f"`parallel=2d` needs an even number of gpus on each node, so that pairs stay inside, but got gpus={gpus}, "
            f"nodes={nodes}; use parallel=ddp"
        )
    count = shards(parallel, gpus)
    if batch % count:
        raise ValueError(
            f"`batch_size` must be a multiple of {count}, the shards of parallel={parallel} with gpus={gpus}, but got "
            f"batch_size={batch}; use batch_size={-(-batch // count) * count}"
        )
    if (moved := spec.value("transfers")) in ("sliced", "naive") and gpus == nodes:
        raise ValueError(
            f"`transfers={moved}` needs two gpus on a node, but got gpus={gpus}, nodes={nodes}; use transfers=auto"
        )
    if gpus > 1 and ":" in (device := spec.value("device")):
        raise ValueError(f"`gpus={gpus}` needs device=cuda or cpu, but got device={device}; leave the number out")


def check_recorded(spec: SpecFields) -> None:
    """Raises ``ValueError`` for a measured cell whose recorded steps, its last, do not begin with a checkpoint."""
    if spec.value("checkpoint") == "none" or spec.value("task") != "none":
        return
    steps, every = spec.value("steps"), spec.value("checkpoint_every")
    before = steps - AFTER_A_CHECKPOINT
    if before < every or before % every:
        enough = max(1, -(-before // every)) * every + AFTER_A_CHECKPOINT
        raise ValueError(
            f"`steps` must be {AFTER_A_CHECKPOINT} more than a multiple of checkpoint_every where checkpoints are "
            f"measured, but got steps={steps}, checkpoint_every={every}: the lanes of the last {AFTER_A_CHECKPOINT} "
            f"steps are recorded, and would show no checkpoint; use steps={enough}"
        )
