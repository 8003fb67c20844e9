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
from zobench.durable import snapshot, tensors
from zobench.engine.interface import TunedEngine
from zobench.engine.passes.drive import plain
from zobench.engine.weights.checkpoint import check_folder
from zobench.hf.arguments import check, check_same, spec_of
from zobench.methods import Method, StepResult
from zobench.methods.engines import EngineParts
from zobench.models.weights import ModelWeights, PretrainedWeights, Weights
from zobench.training.assemble import engine_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

INPUTS = ("input_ids", "labels", "attention_mask")


class ZOMixin:
    """Goes before a ``Trainer`` in a class's bases: each step is one of zobench's ``method`` on its ``engine``.

    ``zo``: fields of :class:`~zobench.runspec.RunSpec`, those in :mod:`zobench.hf.arguments`; learning rate, schedule,
    weight decay and seed are those of the TrainingArguments. The engine takes the model's weights over when the first
    step, evaluation or saving asks for it; :meth:`save_model` writes them, and :meth:`close` ends it. Raises
    ``ValueError``, one line, for arguments that mean nothing to such a step, and for what the engine refuses.
    """

    if TYPE_CHECKING:
        args: TrainingArguments
        model: PreTrainedModel
        model_wrapped: nn.Module
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
        """What holds the weights; built of the model's own at its first use."""
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
        """What a Trainer may move, prepare and walk over in the model's place: the engine places the weights."""
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
        state = {"method": self.method.state(), "spec": self.spec.to_dict()}
        tensors.write(folder, step, self.engine.state_tensors(), state)

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
        saved = tensors.SnapshotWeights(snapshots[0])
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
