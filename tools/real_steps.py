"""Steps and an evaluation of real models as they were, as they are, and bare forwards of transformers, in turn.

``ZOBENCH_DATA_DIR=DATA python -m tools.real_steps SmolLM2-135M-Instruct`` (or the model's folder) prints a
table: SST-2 with batches of 8, evaluation of its test sentences, and OPT-125M at 512 and 2048 tokens. "before" is
what zobench computed before: ``packed=false attention=model``, the head's whole vocabulary, evaluation in the batches
of a step, casts of perturbed weights in each product, kernels on threads of their own; "signs" is
``law=rademacher``; every ratio is of pairs of one round. ``task``, ``512``, ``2048``, ``evaluation`` after the
model's name choose parts, ``rounds=3`` shortens them. Beside each part stand its kernels of attention, and the cores
that others kept busy.
"""

import contextlib
import functools
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from unittest import mock

import torch

from tests.support.reference import mezo
from zobench import Batch, RunSpec, kernels, models
from zobench.data.batch import stream
from zobench.data.tasks.task_data import TaskData
from zobench.engine import build
from zobench.engine.passes import attention, head
from zobench.kernels import cpu_threads
from zobench.measure.threads import Neighbours, settle
from zobench.models import tokenizers
from zobench.models.source import identified
from zobench.models.weights import RandomWeights, materialise
from zobench.recipes import matrix
from zobench.stats.intervals import median_interval, ratio_of_pairs
from zobench.training import assemble
from zobench.training import evaluate as evaluation
from zobench.training.run import usual_data_dir

T = TypeVar("T")
Calls = dict[str, Callable[[], object]]
AFTER = {"attention": "fast", "packed": True}
LOZO = {"method": "lozo", "noise": "counter", "lr": 1e-6}
COUNTER = {"noise": "counter", "lr": 1e-6}


@dataclass(frozen=True, slots=True)
class Goal:
    """That the calls ``name`` take at most ``most`` times the seconds of ``against``; ``least``: at least. ``against``
    "": seconds."""

    name: str
    against: str
    most: float = 0.0
    least: float = 0.0


def spec_of(**values: Any) -> RunSpec:
    """The spec of a resident run on this CPU."""
    return identified(matrix.asked({"weights": "random", "steps": 100, **values})).resolve("cpu")


def data_of(spec: RunSpec) -> TaskData:
    """The encoded examples of the spec's task."""
    words, _ = tokenizers.load(spec)
    masked = models.of(spec).masked
    return TaskData.load(spec, words, positions=models.position_count(spec), masked=masked, data_dir=usual_data_dir())


def bare_of(spec: RunSpec) -> Any:
    """transformers' own model with the spec's random weights."""
    bare = assemble.empty_model(spec)
    materialise(bare, RandomWeights(bare, 0), "cpu")
    return bare.eval()  # type: ignore[no-untyped-call]


def step_of(spec: RunSpec, batch: Batch, during: contextlib.ExitStack) -> Callable[[], object]:
    """A step of the spec's method on ``batch``, always the same one, so that rounds differ in nothing."""
    built = during.enter_context(assemble.tuner(spec))
    return lambda: built.method.step(built.engine, batch)


def as_before(call: Callable[[], T]) -> Callable[[], T]:
    """The call without what computes less than before whatever the fields of a spec are."""

    def wrapped() -> T:
        with (
            mock.patch.object(head, "is_relative", return_value=False),
            mock.patch.object(evaluation, "room", return_value=0),
            mock.patch.object(build, "cast_by_products", return_value=None),
            mock.patch.object(cpu_threads, "_openmp", return_value=None),
        ):
            return call()

    return wrapped


@torch.inference_mode()
def forwards(bare: Any, batch: Batch, count: int) -> None:
    """So many forwards of transformers over the batch, full logits and, without choices, its loss."""
    labels = batch.labels if batch.choices is None else None
    for _ in range(count):
        bare(input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=labels, use_cache=False)


def each_candidate(batch: Batch) -> Batch:
    """A row for each candidate, as programs without shared rows have them."""
    assert batch.choices is not None
    owners = batch.choices.owners
    rows = torch.stack([batch.choices.places[owners == n][0, 0] for n in range(int(owners.max()) + 1)])
    mask = None if batch.attention_mask is None else batch.attention_mask[rows]
    return Batch(batch.input_ids[rows], batch.labels[rows], mask, batch.choices)


def task_calls(model: str, during: contextlib.ExitStack) -> tuple[Calls, list[Goal]]:
    """SST-2 with batches of 8: steps before and after, and two forwards over the rows and over the candidates."""
    calls: Calls = {}
    first = data_of(spec_of(model=model, task="sst2", batch_size=8)).train_batch(0)
    autocast = COUNTER | {"dtype": "fp32", "autocast": "bf16"}
    for dtype, kinds in (
        ("bf16", (("lozo", LOZO), ("counter", COUNTER), ("counter autocast", autocast))),
        ("fp32", (("counter", COUNTER),)),
    ):
        for name, method in kinds:
            signs = () if name == "lozo" else (("signs", AFTER | {"law": "rademacher"}),)
            for when, how in (("before", {}), ("after", AFTER), *signs):
                spec = spec_of(**{"model": model, "task": "sst2", "batch_size": 8, "dtype": dtype, **method, **how})
                build_step = functools.partial(step_of, spec, first, during)
                step = as_before(as_before(build_step)()) if when == "before" else build_step()
                calls[f"{name} {dtype}, {when}"] = step
    bare = bare_of(spec_of(model=model, dtype="bf16"))
    calls["2 forwards bf16, a row a sentence"] = lambda: forwards(bare, first, 2)
    calls["2 forwards bf16, a row a candidate"] = lambda: forwards(bare, each_candidate(first), 2)
    return calls, [
        Goal("lozo bf16, after", "lozo bf16, before", 0.6),
        Goal("counter bf16, after", "counter bf16, before", 0.6),
        Goal("counter bf16, signs", "counter bf16, before", 0.6),
        Goal("counter autocast bf16, after", "counter autocast bf16, before"),
        Goal("counter autocast bf16, signs", "counter autocast bf16, before"),
        Goal("counter fp32, after", "counter fp32, before", 0.7),
        Goal("counter fp32, signs", "counter fp32, before", 0.7),
        Goal("lozo bf16, after", "2 forwards bf16, a row a sentence", 0.5),
        Goal("lozo bf16, after", "2 forwards bf16, a row a candidate", 0.5),
    ]


def length_calls(tokens: int, during: contextlib.ExitStack) -> tuple[Calls, list[Goal]]:
    """OPT-125M on one row of random tokens: LOZO and two bare forwards, counter noise and a plain MeZO loop."""
    model, calls = "OPT-125M", Calls()
    batch = next(stream(spec_of(model=model, seq_len=tokens), models.build_config(model).vocab_size, None))
    doubled = Batch(batch.input_ids.repeat(2, 1), batch.labels.repeat(2, 1))
    goals = []
    for dtype, most in (("bf16", 0.85), ("fp32", 1.0)):
        for when, how in (("before", {}), ("after", {"attention": "fast"})):
            spec = spec_of(model=model, seq_len=tokens, dtype=dtype, **LOZO, **how)
            calls[f"lozo {dtype}, {when}"] = step_of(spec, batch, during)
        bare = bare_of(spec_of(model=model, seq_len=tokens, dtype=dtype))
        calls[f"2 forwards {dtype}"] = lambda bare=bare: forwards(bare, doubled, 1)  # type: ignore[misc]
        goals += [Goal(f"lozo {dtype}, after", f"2 forwards {dtype}", most),
                  Goal(f"lozo {dtype}, after", f"lozo {dtype}, before")]  # fmt: skip
    plain = bare_of(spec_of(model=model, seq_len=tokens))
    calls["counter fp32, after"] = step_of(
        spec_of(model=model, seq_len=tokens, attention="fast", **COUNTER), batch, during
    )
    calls["plain MeZO loop fp32"] = lambda: mezo(plain, [batch], [1], eps=1e-3, lr=1e-6)  # type: ignore[no-untyped-call]
    return calls, [*goals, Goal("plain MeZO loop fp32", "counter fp32, after", least=1.3)]


def evaluation_calls(model: str, during: contextlib.ExitStack) -> tuple[Calls, list[Goal]]:
    """All test sentences of SST-2, before and after, with the batches of a run whose batch size is 8."""
    calls: Calls = {}
    for dtype in ("bf16", "fp32"):
        for when, how in (("before", {}), ("after", AFTER)):
            spec = spec_of(model=model, task="sst2", batch_size=8, dtype=dtype, **COUNTER, **how)
            built, data = during.enter_context(assemble.tuner(spec)), data_of(spec)
            call = functools.partial(evaluation.evaluate, built.engine, data, "test", 0)
            name = f"{data.facts['counts']['test']} sentences {dtype}, {when}"
            calls[name] = as_before(call) if when == "before" else call
    names = list(calls)
    return calls, [Goal(names[1], names[0]), Goal(names[3], names[2]), Goal(names[1], "", 25.0)]


def timed(calls: Calls, rounds: int) -> dict[str, list[float]]:
    """Seconds of each call by round, after one that does not count; the order turns from round to round."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    orders = itertools.cycle(list(calls)[n:] + list(calls)[:n] for n in range(len(calls)))
    for number in range(rounds + 1):
        for name in next(orders):
            begin = time.perf_counter()
            calls[name]()
            if number:
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def rows(title: str, seconds: Mapping[str, list[float]], goals: list[Goal]) -> Iterator[str]:
    """The lines of a table in Markdown."""
    yield f"| {title} | seconds, median | 95 % | "
    yield "|---|---:|---:|"
    for name, values in seconds.items():
        interval = median_interval(values) or (min(values), max(values))
        yield f"| {name} | {statistics.median(values):.3f} | {interval[0]:.3f} to {interval[1]:.3f} |"
    for goal in goals:
        against = seconds[goal.against] if goal.against else [1.0] * len(seconds[goal.name])
        ratio = ratio_of_pairs(list(zip(seconds[goal.name], against, strict=True)))
        wanted = f", at most {goal.most}" if goal.most else f", at least {goal.least}" if goal.least else ""
        span = "" if ratio.interval is None else f"{ratio.interval[0]:.2f} to {ratio.interval[1]:.2f}"
        yield f"| **{goal.name} / {goal.against or 'a second'}**{wanted} | {ratio.value:.2f} | {span} |"
    yield ""


def main(model: str, *words: str) -> None:
    """Prints a table for each part."""
    fewer = next((int(word.partition("=")[2]) for word in words if word.startswith("rounds=")), None)
    asked = [word for word in words if "=" not in word] or ["task", "512", "2048", "evaluation"]
    settle()
    kernels.prepare("cpu")
    title, counts = "SmolLM2-135M, SST-2", {"task": 12, "evaluation": 3, "2048": 6}
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}\n", flush=True)
    for part in asked:
        begin, others = time.perf_counter(), Neighbours()
        with contextlib.ExitStack() as during:
            if part.isdecimal():
                called, (calls, goals) = f"OPT-125M, {part} tokens", length_calls(int(part), during)
            else:
                made = task_calls if part == "task" else evaluation_calls
                called, (calls, goals) = f"{title}, {part}", made(model, during)
            print("\n".join(rows(called, timed(calls, fewer or counts.get(part, 8)), goals)), flush=True)
        print(
            f"({part}: {time.perf_counter() - begin:.0f} s with building; others kept {others.cores():.2f} cores busy)"
        )
        for dtype in ("bf16", "fp32"):
            name = "OPT-125M" if part.isdecimal() else model
            kernels_of = assemble.attention_kernels(spec_of(model=name, dtype=dtype, attention="fast"))
            print(f"({dtype}, {attention.described(kernels_of)})", flush=True)
        print()


if __name__ == "__main__":
    main(*sys.argv[1:])
