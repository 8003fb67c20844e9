"""Runs a cell by an authors' own program, in that program's Python: the only file of zobench that goes there.

A question comes as a line of JSON on standard input; each answer is a line of JSON on standard output, with its
``kind``. Python 3.8 and what the program itself needs are enough. Whatever the program prints goes to standard error.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import math
import os
import platform
import signal
import sys
import time
import traceback
from typing import Any, ClassVar

FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Torch's names of dtypes by those of safetensors."""
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
PR_SET_PDEATHSIG = 1


class AnswerStream:
    """The stream of answers: the standard output that this process was started with, which the program no longer
    has."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def say(self, kind: str, **values: Any) -> None:
        """Sends one answer."""
        self._file.write(json.dumps({"kind": kind, **values}) + "\n")
        self._file.flush()


class MeZO:
    """princeton-nlp/MeZO: ``zo_step`` and ``zo_update`` of the trainer for large models."""

    folder = "large_models"
    settings: ClassVar[Any] = {"trainer": "zo", "non_diff": False}

    def __init__(self, clone: str) -> None:
        sys.path.insert(0, os.path.join(clone, self.folder))
        self.trainer_class = importlib.import_module("trainer").OurTrainer
        self.losses: Any = []

    def kind(self, config: Any) -> Any:
        """The class of the model that ``config`` describes."""
        return importlib.import_module("transformers").AutoModelForCausalLM._model_mapping[type(config)]

    def begin(self, spec: Any, model: Any, scratch: str) -> None:
        """Takes ``model``, on the CPU and with its weights, as what the steps of ``spec`` move."""
        self.model = model.to(spec["device"])
        arguments = training_arguments(spec, scratch)
        for name, value in {**self.settings, "zo_eps": spec["eps"]}.items():
            setattr(arguments, name, value)
        self.trainer = self.made(watched(self.trainer_class, self.losses), arguments)
        self.trainer.create_optimizer_and_scheduler(num_training_steps=spec["warmup"] + spec["steps"])

    def made(self, kind: Any, arguments: Any) -> Any:
        return kind(model=self.model, args=arguments)

    def step(self, inputs: Any) -> Any:
        """Takes a step: the losses at both points, and the projected gradient."""
        self.losses.clear()
        self.trainer.zo_step(self.model, inputs)
        self.trainer.zo_update(self.model)
        return self.losses, self.trainer.projected_grad


class ZOLLM(MeZO):
    """ZO-Bench/ZO-LLM: the same methods of its own trainer, with the optimizer and the mask of its ZO-SGD."""

    folder = "zo-bench"
    settings: ClassVar[Any] = {**MeZO.settings, "trainer": "zo_sgd", "perturbation_mode": "two_side", "q": 1}

    def made(self, kind: Any, arguments: Any) -> Any:
        return kind(None, None, None, None, model=self.model, args=arguments)

    def begin(self, spec: Any, model: Any, scratch: str) -> None:
        """See :meth:`MeZO.begin`; what follows is set by that program's own training loop."""
        super().begin(spec, model, scratch)
        torch = importlib.import_module("torch")
        self.trainer.optimizer = torch.optim.SGD(self.model.parameters(), lr=spec["lr"])
        self.trainer.gradient_sparsity = None
        self.trainer.sparse_grad_rng = torch.Generator(device=spec["device"])
        self.trainer.sparse_grad_random_seed = 0


class ZO2:
    """liangyuwang/zo2: its model, whose forward is a step while its blocks travel. Needs CUDA."""

    def __init__(self, clone: str) -> None:
        sys.path.insert(0, clone)
        self.package = importlib.import_module("zo2")

    def kind(self, config: Any) -> Any:
        """See :meth:`MeZO.kind`: the program's own class of OPT."""
        return self.package.get_opt_for_causalLM(self.package.ZOConfig(method="mezo-sgd", zo2=True))

    def begin(self, spec: Any, model: Any, scratch: str) -> None:
        self.device, self.model = spec["device"], model
        model.zo_init(self.package.ZOConfig(
            method="mezo-sgd", zo2=True, lr=spec["lr"], weight_decay=spec["weight_decay"], eps=spec["eps"],
            offloading_device="cpu", working_device=spec["device"], overlap=spec["overlap"],
        ))  # fmt: skip
        self.losses: Any = []
        self.compute_grad, model.opt.compute_grad = model.opt.compute_grad, self.gradient

    def gradient(self, plus: Any, minus: Any) -> Any:
        """The program's own of both losses, which are noted."""
        self.losses += [plus, minus]
        return self.compute_grad(plus, minus)

    def step(self, inputs: Any) -> Any:
        self.losses.clear()
        self.model.zo_train()
        self.model(**{name: tensor.to(self.device) for name, tensor in inputs.items()})
        return self.losses, self.model.opt.projected_grad


PROGRAMS = {"mezo": MeZO, "zo-llm": ZOLLM, "zo2": ZO2}


def watched(kind: Any, losses: Any) -> Any:
    """The trainer ``kind``, which also notes each loss that it computes in ``losses``."""

    class Watched(kind):  # type: ignore[misc]
        def zo_forward(self, model: Any, inputs: Any) -> Any:
            loss = super().zo_forward(model, inputs)
            losses.append(loss)
            return loss

    return Watched


def training_arguments(spec: Any, scratch: str) -> Any:
    """transformers' arguments as the programs' scripts for ZO-SGD set them: a constant rate, nothing reported."""
    kind = importlib.import_module("transformers").TrainingArguments
    on_cpu = "no_cuda" if "no_cuda" in kind.__dataclass_fields__ else "use_cpu"
    return kind(
        output_dir=scratch, per_device_train_batch_size=spec["batch_size"], learning_rate=spec["lr"],
        weight_decay=spec["weight_decay"], lr_scheduler_type="constant", max_steps=spec["warmup"] + spec["steps"],
        report_to=[], **{on_cpu: spec["device"] == "cpu"},
    )  # fmt: skip


def built(kind: Any, config: Any, dtype: str, folder: str) -> Any:
    """A model of ``kind`` on the CPU in eval mode, with the weights of ``folder``."""
    torch = importlib.import_module("torch")
    usual = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, DTYPES[dtype]))
    try:
        model = kind(config).eval()
    finally:
        torch.set_default_dtype(usual)
    fill(model, folder)
    return model


def fill(model: Any, folder: str) -> None:
    """Copies the tensors of a folder's safetensors into ``model``, one at a time: two models would count as memory."""
    torch = importlib.import_module("torch")
    tensors, left = model.state_dict(), {name for name, _ in model.named_parameters()}
    for file in sorted(name for name in os.listdir(folder) if name.endswith(".safetensors")):
        with open(os.path.join(folder, file), "rb") as handle:
            size = int.from_bytes(handle.read(8), "little")
            for name, entry in json.loads(handle.read(size)).items():
                if name not in tensors or list(tensors[name].shape) != entry["shape"]:
                    if name == "__metadata__":
                        continue
                    raise ValueError("the program's model has no {} of shape {}".format(name, entry["shape"]))
                first, last = entry["data_offsets"]
                handle.seek(8 + size + first)
                data = bytearray(last - first)
                handle.readinto(data)
                values = torch.frombuffer(data, dtype=getattr(torch, FLOATS[entry["dtype"]]))
                tensors[name].copy_(values.view(entry["shape"]))
                left.discard(name)
    if left:
        raise ValueError("the program's model has other weights: " + ", ".join(sorted(left)))


def draws(seeds: Any) -> None:
    """Makes NumPy's ``randint``, from which the programs take the seed of each step, give ``seeds`` in their order."""
    coming = iter(seeds)
    importlib.import_module("numpy").random.randint = lambda *bounds: next(coming)


def facts() -> Any:
    """Versions of Python and of what the program imported, and the threads that torch uses."""
    versions = {"python": platform.python_version()}
    for name in ("torch", "transformers", "numpy"):
        versions[name] = str(importlib.import_module(name).__version__)
    return {"versions": versions, "threads": importlib.import_module("torch").get_num_threads()}


def measure(program: Any, question: Any, answers: AnswerStream) -> None:
    """Takes the steps of the question's cell; the asker reads this process's memory before and after them."""
    torch, spec = importlib.import_module("torch"), question["spec"]
    config = importlib.import_module("transformers").AutoConfig.from_pretrained(question["weights"])
    kind, cuda = program.kind(config), spec["device"].startswith("cuda")
    square = torch.ones(64, 64, device=spec["device"])
    (square @ square).sum().item()  # what is loaded lazily is baseline too
    answers.say("ready")
    sys.stdin.readline()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        program.begin(spec, built(kind, config, spec["dtype"], question["weights"]), question["scratch"])
    begin = steps(program, question, answers, torch.cuda.synchronize if cuda else lambda: None)
    answers.say("done", window=[begin, time.monotonic()], memory=device_memory(torch) if cuda else {})
    sys.stdin.read()  # until the asker has looked


def steps(program: Any, question: Any, answers: AnswerStream, finish: Any) -> float:
    """Takes the steps, each timed until the device is done, and sends their samples; when the measured ones began."""
    torch, warmup = importlib.import_module("torch"), question["spec"]["warmup"]
    batches = [{name: torch.tensor(rows) for name, rows in batch.items()} for batch in question["batches"]]
    draws(question["seeds"])
    begin = time.monotonic()
    for number, inputs in enumerate(batches):
        if number == warmup:
            begin = time.monotonic()
        if number > warmup and too_late(question["end"], begin, number - warmup):
            break
        start = time.perf_counter()
        losses, gradient = program.step(inputs)
        finish()
        seconds, loss = time.perf_counter() - start, sum(map(float, losses)) / len(losses)
        answers.say("step", step_seconds=seconds, loss=finite(loss), projected_grad=finite(float(gradient)))
    return begin


def too_late(end: Any, begin: float, count: int) -> bool:
    """Whether a step more, as long as the ``count`` since ``begin`` were on average, would end after ``end``."""
    now = time.monotonic()
    return end is not None and now + (now - begin) / count > end


def device_memory(torch: Any) -> Any:
    return {
        "device_peak_bytes": torch.cuda.max_memory_allocated(),
        "device_reserved_peak_bytes": torch.cuda.max_memory_reserved(),
    }


def finite(value: float) -> Any:
    """``value``, or None for what JSON has no number for."""
    return value if math.isfinite(value) else None


def main() -> None:
    """Answers one question: about a cell, or without one about the program alone. Ends with the asker's process."""
    answers = AnswerStream()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    try:
        question = json.loads(sys.stdin.readline())
        program = PROGRAMS[question["program"]](question["clone"])
        answers.say("facts", **facts())
        if "spec" in question:
            measure(program, question, answers)
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())
        answers.say("error", type=type(error).__name__, text=text, trace=traceback.format_exc())


if __name__ == "__main__":
    main()
