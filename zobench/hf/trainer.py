"""A Trainer whose steps are zobench's: ``ZOTrainer(model, args, train_dataset=..., zo={"engine": "offload"})``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from zobench import methods
from zobench.data.batch import Batch
from zobench.durable import snapshot
from zobench.engine.assemble import check_kind
from zobench.engine.interface import TunedEngine
from zobench.engine.passes.drive import plain
from zobench.engine.weights.checkpoint import check_folder
from zobench.methods import Method, StepResult
from zobench.methods.engines import EngineParts
from zobench.models import DTYPES
from zobench.models.weights import ModelWeights, PretrainedWeights, Weights
from zobench.runspec import RunSpec, suggestion
from zobench.training.assemble import engine_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

INPUTS = ("input_ids", "labels", "attention_mask")


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
"""The arguments of a Trainer that work on gradients or logits."""


def spec_of(args: TrainingArguments, model: PreTrainedModel, zo: Mapping[str, Any]) -> RunSpec:
    """Returns the spec of the run that ``zo`` and the arguments describe."""
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


class ZOMixin:
    """Goes before a ``Trainer`` in a class's bases: each step is one of zobench's ``method`` on its ``engine``.

    ``zo``: fields of :class:`~zobench.runspec.RunSpec`, of :data:`METHOD` and :data:`PLACES`; learning rate, schedule,
    weight decay and seed are those of the TrainingArguments. The engine takes the model's weights over when the first
    step, evaluation or saving asks for it; :meth:`save_model` writes them, and :meth:`close` ends it. Raises
    ``ValueError``, one line, for arguments that mean nothing to such a step, and for what the engine refuses.
    """

    if TYPE_CHECKING:
        args: TrainingArguments
        model: PreTrainedModel
        optimizer: torch.optim.Optimizer | None

    def __init__(self, *args: Any, zo: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check(cast("Trainer", self))
        check_folder(Path(self.args.output_dir or "."))
        self.spec = spec_of(self.args, self.model, zo or {})
        self.method: Method = methods.make(self.spec)
        self.last: StepResult | None = None
        self._engine: TunedEngine | None = None
        self._trained = {name for name, tensor in self.model.named_parameters() if tensor.requires_grad}
        self._kept: list[tuple[nn.Module, str, Tensor]] = []
        self._thresholds = methods.thresholds(self.spec, self.model, ModelWeights(self.model))

    # --- the engine ---------------------------------------------------------------------------------------------------

    @property
    def engine(self) -> TunedEngine:
        """The engine that holds the weights; it is built of the model's own at its first use."""
        if self._engine is None:
            self._build(ModelWeights(self.model))
        assert self._engine is not None
        return self._engine

    def close(self) -> None:
        """Ends the engine. A resident model then has its trained weights, on its device; those of an offloaded one go
        with their tier, so :meth:`save_model` comes first."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None
            for module, key, buffer in self._kept:  # those of a streamed block were its slot's
                setattr(module, key, buffer)
            self._release()

    @torch.no_grad()
    def _release(self) -> None:
        """Makes the model's parameters its own, of which an engine's are views that autograd does not know."""
        fresh = {
            tensor: nn.Parameter(tensor.clone(), requires_grad=name in self._trained)
            for name, tensor in self.model.named_parameters()
        }
        for module in self.model.modules():
            for key, tensor in module.named_parameters(recurse=False):
                setattr(module, key, fresh[tensor])

    def _build(self, weights: Weights, state: Weights | None = None) -> None:
        modules = list(self.model.modules())
        self._kept = [(m, key, buffer.clone()) for m in modules for key, buffer in m.named_buffers(recurse=False)]
        parts = EngineParts(
            model=self.model, config=engine_config(self.spec), weights=weights, drive=plain,
            rule=methods.rule(self.spec), state=state, thresholds=self._thresholds,
            directions=methods.directions(self.spec),
        )  # fmt: skip
        self._engine = methods.engine(self.spec, parts)

    # --- a Trainer's own steps ----------------------------------------------------------------------------------------

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """One step of the method on the batch, at the schedule's learning rate; its loss, float32 on the device."""
        assert self.optimizer is not None
        self.method.lr = float(self.optimizer.param_groups[0]["lr"])
        self.last = self.method.step(self.engine, _batch(inputs))
        return torch.tensor(self.last.loss, device=self.args.device)

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Tensor, None, None]:
        """(the batch's loss with every update applied, no logits, no labels)."""
        return torch.tensor(self.engine.evaluate(_batch(inputs)), device=self.args.device), None, None

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Raises ``ValueError``: the engine keeps no logits."""
        raise ValueError(
            "`predict` needs logits, which the engine does not keep; use save_model and load what it wrote"
        )

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Adds what the last step measured, g or a first-order method's norm of the gradient, and the steps skipped."""
        if "loss" in logs and self.last is not None:
            name = "projected_grad" if self.last.seeds else "grad_norm"
            others = {key: logs[key] for key in logs if key != "grad_norm"}  # a Trainer's is that of no gradient
            logs = {**others, name: self.last.projected_grad, "skipped": self.method.skipped}
        super().log(logs, *args, **kwargs)  # type: ignore[misc]

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """An optimizer of nothing, for the schedule's sake: it holds the learning rate."""
        if self.optimizer is None:
            self.optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(()))], lr=self.args.learning_rate)
        return self.optimizer

    def _wrap_model(self, *args: Any, **kwargs: Any) -> nn.Module:
        """Returns the module that a Trainer may move, prepare and walk over in the model's place: the engine places the
        weights."""
        return _Nothing(sum(tensor.numel() for tensor in self.model.parameters() if tensor.requires_grad))

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        """Moves nothing: see :meth:`_wrap_model`."""

    # --- saving and going on ------------------------------------------------------------------------------------------

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        folder = Path(output_dir or self.args.output_dir or ".")
        self.engine.save_pretrained(folder)
        words = getattr(self, "processing_class", None) or getattr(self.data_collator, "tokenizer", None)  # type: ignore[attr-defined]
        if words is not None:
            words.save_pretrained(folder)
        torch.save(self.args, folder / "training_args.bin")

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)  # type: ignore[misc]
        folder, step = Path(output_dir), self.state.global_step  # type: ignore[attr-defined]
        snapshot.prune(folder, ())  # of another run with this folder
        state = {"method": self.method.state(), "spec": self.spec.to_dict(), "thresholds": self._thresholds}
        snapshot.write_tensors(folder, step, self.engine.state_tensors(), state)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        folder = Path(resume_from_checkpoint)
        snapshots = [snapshot.path_of(folder, step) for step in snapshot.steps(folder)]
        if len(snapshots) != 1:
            raise ValueError(
                f"`resume_from_checkpoint` must be a checkpoint with its method's state, but {folder} has "
                f"{len(snapshots)}; save with save_only_model=False"
            )
        state = snapshot.state(snapshots[0])
        check_same(self.spec, state["spec"])
        self._thresholds = state.get("thresholds", self._thresholds)  # of the weights that the run began from
        saved = snapshot.SnapshotWeights(snapshots[0])
        self._start_from(folder, saved if saved.names else None)
        self.method.restore(state["method"])

    def _load_best_model(self) -> None:
        self._start_from(Path(self.state.best_model_checkpoint))  # type: ignore[attr-defined]

    def _start_from(self, folder: Path, state: Weights | None = None) -> None:
        self.close()
        self._build(PretrainedWeights(folder, self.model), state)


class ZOTrainer(ZOMixin, Trainer):  # type: ignore[misc]
    """``transformers.Trainer`` with zobench's steps: see :class:`ZOMixin`."""


class _Nothing(nn.Module):
    """A model without weights, of which a Trainer that counts them is told ``count``."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Yields one parameter without memory: nothing can be moved, and it has no gradient."""
        yield nn.Parameter(torch.empty(self._count, device="meta"))


def _batch(inputs: Mapping[str, Any]) -> Batch:
    given = {name: value for name, value in inputs.items() if value is not None}
    if other := sorted(set(given) - set(INPUTS)):
        raise ValueError(
            f"a batch must be of {', '.join(INPUTS)}, but got {other[0]}; use a data collator that makes "
            "no more than these"
        )
    if not {"input_ids", "labels"} <= set(given):
        raise ValueError(
            f"a batch must have input_ids and labels, but got {', '.join(given) or 'nothing'}; use a data collator "
            "that makes labels, as DataCollatorForLanguageModeling(tokenizer, mlm=False)"
        )
    return Batch(**{name: value.long() for name, value in given.items()})
