"""What a Trainer was asked for, as the spec of a run, or refused where it has no meaning there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import Trainer, TrainingArguments

from zobench.engine.assemble import check_kind
from zobench.models import DTYPES
from zobench.runspec import RunSpec, suggestion

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

METHOD = (
    "method", "definition", "eps", "queries", "momentum", "sparsity", "zo_layers", "checkpointing", "foreach",
    "options",
)  # fmt: skip
PLACES = (
    "engine", "tier", "noise", "granularity", "slots", "resident_blocks", "writeback_every", "wire", "autocast",
    "compile", "overlap", "reusable_memory", "fused_update",
)  # fmt: skip
"""The fields of :class:`~zobench.runspec.RunSpec` that ``zo`` may set: how a step is taken, where the weights are."""

TRAINER_FIELDS = {
    "lr": "learning_rate", "weight_decay": "weight_decay", "seed": "seed", "lr_schedule": "lr_scheduler_type",
    "steps": "max_steps", "batch_size": "per_device_train_batch_size", "eval_every": "eval_steps",
}  # fmt: skip
"""The fields that TrainingArguments have, and their names there."""

WITHOUT_MEANING: dict[str, tuple[tuple[Any, ...], str]] = {
    "gradient_accumulation_steps": ((1,), "a step has no gradient to add up; use a larger per_device_train_batch_size"),
    "max_grad_norm": ((1.0, 0.0, None), "nothing is clipped; leave it out"),
    "fp16": ((False,), "the engine casts products itself; use a model in float16 or zo={'autocast': 'fp16'}"),
    "bf16": ((False,), "the engine casts products itself; use a model in bfloat16 or zo={'autocast': 'bf16'}"),
    "fp16_full_eval": ((False,), "an evaluation is the engine's; leave it out"),
    "bf16_full_eval": ((False,), "an evaluation is the engine's; leave it out"),
    "gradient_checkpointing": (
        (False,),
        "there is no backward pass; fo-sgd and fo-adam take zo={'checkpointing': True}",
    ),
    "activation_checkpointing": ((False, None), "there is no backward pass; leave it out"),
    "label_smoothing_factor": ((0.0, 0), "the loss is the model's own; leave it out"),
    "neftune_noise_alpha": ((None,), "the embedding has no noise but the direction's; leave it out"),
    "torch_compile": ((False,), "the engine compiles blocks itself; use zo={'compile': True}"),
    "use_liger_kernel": ((False,), "the engine computes the head itself; leave it out"),
    "auto_find_batch_size": ((False,), "an engine that failed cannot be used again; leave it out"),
    "deepspeed": ((None,), "the weights are the engine's; leave it out"),
    "fsdp": ((None, False, "", []), "the weights are the engine's; leave it out"),
    "loss_type": (("nll", None), "the loss is the model's own; leave it out"),
}
"""Arguments of a Trainer without a meaning here: the values that ask for nothing, and what to do instead."""


OBJECTS = (
    "optimizer", "lr_scheduler", "optimizer_cls_and_kwargs", "model_init", "compute_loss_func", "compute_metrics",
)  # fmt: skip
"""What a Trainer is given that works on gradients or logits."""


def spec_of(args: TrainingArguments, model: PreTrainedModel, zo: Mapping[str, Any]) -> RunSpec:
    """What ``zo`` and the arguments say, as the spec of a run."""
    fields = (*METHOD, *PLACES)
    if not isinstance(zo, Mapping):
        raise ValueError(f"`zo` must be a dict, but got {zo!r}; for example zo={{'engine': 'offload'}}")
    for name in zo:
        field = name.partition(".")[0]
        if field in TRAINER_FIELDS:
            raise ValueError(
                f"`zo` must not say what TrainingArguments say, but got {name}; use "
                f"TrainingArguments({TRAINER_FIELDS[field]}=...)"
            )
        if field not in fields:
            raise ValueError(
                f"`zo` must be of {', '.join(fields)}, but got {name!r}; {suggestion(name, fields) or 'leave it out'}"
            )
    words = {getattr(torch, name): word for word, name in DTYPES.items()}
    if model.dtype not in words:
        raise ValueError(f"a model must be in {', '.join(DTYPES)}, but got {model.dtype}; load it with dtype=...")
    trainer_fields = {"lr": args.learning_rate, "weight_decay": args.weight_decay, "seed": args.seed}
    model_fields = {
        "model": type(model).__name__,
        "dtype": words[model.dtype],
        "batch_size": args.per_device_train_batch_size,
    }
    return RunSpec.from_dict({**model_fields, **trainer_fields, **zo}).resolve(str(args.device))


def check(trainer: Trainer) -> None:
    """Refuses what a Trainer was asked for and would not get."""
    args = trainer.args
    if max(args.world_size, args.n_gpu) > 1:
        raise ValueError(
            f"a ZOTrainer steps on one device, but got {max(args.world_size, args.n_gpu)}; show it one with "
            "CUDA_VISIBLE_DEVICES, or use zobench finetune --set gpus=..."
        )
    for name, (nothing, remedy) in WITHOUT_MEANING.items():
        if (value := getattr(args, name, nothing[0])) not in nothing:
            raise ValueError(f"`{name}` has no meaning for a step of zobench, but got {value}; {remedy}")
    if args.optim != TrainingArguments.__dataclass_fields__["optim"].default:
        raise ValueError(
            f"`optim` must be left out, but got {getattr(args.optim, 'name', args.optim)}; the method takes the steps: "
            "zo={'method': ...}"
        )
    for name in OBJECTS:
        if getattr(trainer, name, None) is not None:
            raise ValueError(
                f"`{name}` has no meaning for a step of zobench, whose engine keeps neither gradients nor logits; "
                "leave it out"
            )
    if hasattr(trainer.model, "peft_config"):
        raise ValueError(
            "a ZOTrainer tunes all weights, but got a model with an adapter of peft; use zobench finetune "
            "--set scheme=lora"
        )
    check_kind(cast("nn.Module", trainer.model))


def check_same(spec: RunSpec, saved: Mapping[str, Any]) -> None:
    """Refuses to go on with steps of another kind than those that a checkpoint comes from."""
    current = spec.to_dict()
    for name in (*METHOD, "noise", "seed", "dtype", "weight_decay"):
        if current[name] != saved[name]:
            raise ValueError(
                f"`resume_from_checkpoint` goes on with the same steps, but {name} was {saved[name]} there and is "
                f"{current[name]}; give what it was"
            )
