"""The bar on a terminal: the newest step's numbers, what was best on dev so far, and how long it takes."""

import io
import time
from dataclasses import replace

from rich.console import Console

from tests.support.tables import tuned
from zobench.cli import tuning_view
from zobench.cli.tuning_view import TuningBar, show_result, show_seeds
from zobench.machine import texts
from zobench.report.paired import over_seeds
from zobench.training.callbacks import Evaluation, RunStart, StepReport


def test_the_bar_tells_loss_g_lr_dev_accuracy_skips_speed_and_time_left(spec, tmp_path, monkeypatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(tuning_view.time, "monotonic", lambda: clock[0])
    console = Console(file=io.StringIO(), force_terminal=True, width=200, highlight=False)
    bar = TuningBar(console)
    first = Evaluation(split="dev", step=0, loss=0.7, accuracy=0.5, count=8)
    best = Evaluation(split="dev", step=8, loss=0.55, accuracy=0.5, count=8, best=True)
    reports = [StepReport(step=step, loss=0.6, g=1.0, lr=1e-6, skipped=0) for step in range(1, 11)]
    begun = RunStart(spec=spec(steps=110), folder=tmp_path, steps=reports, evaluations=[first, best])
    bar.of(begun.spec).on_start(begun)
    bar.on_evaluation(Evaluation(split="dev", step=10, loss=0.5, accuracy=0.625, count=8, best=True))
    bar.on_evaluation(Evaluation(split="dev", step=20, loss=0.6, accuracy=0.75, count=8))
    bar.on_evaluation(Evaluation(split="dev", step=25, loss=0.9, accuracy=0.6, count=8, best=True, gained=False))
    bar.on_evaluation(Evaluation(split="dev", step=26, loss=0.5, accuracy=0.625, count=8, best=True))
    clock[0] += 4.0
    bar.on_step(StepReport(step=30, loss=0.51234, g=-1.5, lr=1e-6, skipped=2))
    (task,) = bar._bars.tasks
    assert (task.completed, task.total, task.description) == (30, 110, "opt-tiny sst2 zo-sgd")
    is_warned = "loss 0.5123, g -1.5, lr 1e-06, least dev loss 0.5000 (62.5%), 2 skipped, 5 steps/s, about 16 s left"
    assert task.fields["scores"] == is_warned
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert "best so far, step 8: dev accuracy 50.0%, loss 0.5500 (best)\nstep 10: " in written
    assert "step 10: dev accuracy 62.5%, loss 0.5000 (best)" in written
    assert "step 20: dev accuracy 75.0%, loss 0.6000\n" in written
    assert "step 25: dev accuracy 60.0%, loss 0.9000 (best after the start)" in written


def test_where_no_bar_is_seen_a_line_says_now_and_then_what_is_under_way(spec, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tuning_view, "_TICK", 0.01)
    monkeypatch.setattr(texts, "REPORT_EVERY", 0.02)
    for is_terminal in (False, True):
        console = Console(file=io.StringIO(), force_terminal=is_terminal, width=200, highlight=False)
        begun = RunStart(spec=spec(steps=110), folder=tmp_path, steps=[], evaluations=[])
        with TuningBar(console).of(begun.spec) as bar:
            time.sleep(0.2)
            bar.on_start(begun)
            bar.on_step(StepReport(step=1, loss=0.6, g=1.0, lr=1e-6, skipped=0))
            time.sleep(0.2)
        written = console.file.getvalue()  # type: ignore[attr-defined]
        assert "preparing the run; 0." in written
        assert ("step 1 of 110: loss 0.6000, g +1" in written) is not is_terminal


def test_a_run_that_only_lost_says_so_and_its_best_is_one_after_the_start() -> None:
    lost, won = (tuned(0.5, dev_loss=loss) for loss in (0.8, 0.6))
    for result, is_warned in ((lost, True), (won, False)):
        console = Console(file=io.StringIO(), width=200)
        show_result(console, replace(result, samples={"step_seconds": [1.0]}))
        written = console.file.getvalue()  # type: ignore[attr-defined]
        line = "warning: the loss on dev was 0.7000 at the start and never below it after a step: this run learnt not"
        assert (line in written, "dev, best after the start" in written) == (is_warned, is_warned)
        assert ("dev at its best" in written) is not is_warned


def test_perplexities_that_are_equal_have_no_interval() -> None:
    row = {"step": 100, "loss": 0.5, "perplexity": 7.0, "count": 500}
    evaluation = {"best": row, "test": row, "scores": ["perplexity"]}
    results = [replace(tuned(0.5, seed=seed), evaluation=evaluation) for seed in (0, 1)]
    show_seeds(console := Console(file=io.StringIO(), width=200), results, over_seeds(results))
    (*_, line) = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert line == "test perplexity: 7.0, mean of 2 seeds, no interval, because all are equal"
