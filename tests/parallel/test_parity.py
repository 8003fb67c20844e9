"""Several ranks are one device on the concatenated batch: every strategy against plain MeZO loops, with `==`, and
first-order steps, through torch's FSDP."""

import json
from statistics import median

import pytest
import torch
from safetensors.torch import load_file

from tests.support import forked_ranks, rank, reference
from tests.support.parity import batches_of, materialised
from tests.support.reference import draw_seeds, mezo, own_loss, pristine_mezo
from zobench import RunSpec, methods
from zobench.execute.process import run_in_process
from zobench.programs import cell
from zobench.result import Outcome
from zobench.runspec import METHODS as KINDS

STEPS = 6
WAYS = {2: ("pertp", "ddp"), 4: ("ddp", "2d", "2d-outer")}
ENGINES = {
    "resident": {"placement": "resident"},
    "offload": {"tier": "pageable"},
    "counter resident": {"placement": "resident", "noise": "counter"},
    "counter offload": {"tier": "pageable", "noise": "counter"},
}


def run_ranks(cases, gpus, folder):
    (folder / "cases.json").write_text(json.dumps(cases))
    forked_ranks.run_ranks("tests.support.rank", gpus, (folder / "cases.json", folder / "out"), folder / "log")
    outcomes = [json.loads((folder / f"out.{rank}.json").read_text()) for rank in range(gpus)]
    tensors = [
        [load_file(folder / f"out.{number}.{rank}.safetensors") for rank in range(gpus)] for number in range(len(cases))
    ]
    assert [interfaces for _, _, interfaces in outcomes] == [
        ["lo", "=lo", True]
    ] * gpus  # where the ranks listen, and sums
    return [ranks for ranks, _, _ in outcomes], tensors, [sent for _, sent, _ in outcomes]


def a_case(model, parallel, gpus, engine, data, exact=True):
    spec = {
        "model": model, "parallel": parallel, "gpus": gpus, "batch_size": 4, "seq_len": 9, "steps": STEPS,
        "data": data, "lr": 1e-4, "seed": 7, "noise": engine.get("noise", "torch"), "device": "cpu",
        "exact": exact and parallel != "ddp",
    }  # fmt: skip
    return {"spec": spec, "engine": engine}


@pytest.fixture(scope="module", params=(2, 4))
def cases_run(request, tmp_path_factory):
    gpus = request.param
    cases = [
        a_case(model, parallel, gpus, engine, data)
        for model in ("opt-tiny", "qwen3-tiny")
        for parallel in WAYS[gpus]
        for name, engine in ENGINES.items()
        for data in ("random", "ragged")
        if (data == "ragged" or name == "counter offload") and (model == "opt-tiny" or "offload" in name)
    ] + [
        a_case("opt-tiny", parallel, gpus, engine, "ragged", exact=False)
        for parallel in WAYS[gpus]
        for engine in ENGINES.values()
        if parallel != "ddp"
    ]
    return gpus, cases, *run_ranks(cases, gpus, tmp_path_factory.mktemp(f"ranks{gpus}"))


def shards_of(spec):
    return {"pertp": 1, "ddp": spec.gpus}.get(spec.parallel, spec.gpus // 2)


def sharded(loss_of, shards):
    """The mean of the losses of a batch's shards, weighted by their tokens."""

    def loss(model, batch):
        parts = [batch.shard(index, shards) for index in range(shards)]
        outcomes = [(int((part.labels[:, 1:] != -100).sum()), loss_of(model, part)) for part in parts]
        return sum(n * outcome for n, outcome in outcomes) / sum(n for n, _ in outcomes)

    return loss


@pytest.mark.slow
def test_all_ranks_get_the_bits_of_a_plain_loop_over_the_shards(cases_run, monkeypatch):
    """Of counter noise that is not exact the ranks have each other's bits."""
    _, cases, ranks, tensors, _ = cases_run
    known, loss_of = {}, reference.plain_loss
    for number, case in enumerate(cases):
        spec, (first, *others) = RunSpec(**case["spec"]), tensors[number]
        assert all(outcomes[number] == ranks[0][number] for outcomes in ranks), case
        assert all(torch.equal(other[name], first[name]) for other in others for name in first), case
        exact, shards = spec.exact or spec.parallel == "ddp", shards_of(spec)
        if spec.noise == "counter" and not exact:
            continue
        key = (spec.model, spec.noise, shards, spec.data, exact)
        if key not in known:
            model = materialised(spec.model, spec.dtype)
            data, seeds, rates = batches_of(spec, STEPS), draw_seeds(7, STEPS), {"eps": spec.eps, "lr": spec.lr}
            if spec.noise == "torch":
                outcomes = mezo(model, data, seeds, **rates, loss_of=sharded(own_loss, shards), fresh=not exact)
            else:
                monkeypatch.setattr(reference, "plain_loss", sharded(loss_of, shards))
                outcomes = pristine_mezo(model, data, [(seed,) for seed in seeds], **rates)
            known[key] = (*outcomes, dict(model.named_parameters()))
        losses, gs, final = known[key]
        assert (ranks[0][number]["losses"], ranks[0][number]["gs"]) == (losses, gs), case
        assert all(torch.equal(first[name], final[name]) for name in final), case
        assert len(set(gs)) == STEPS


FEW = 4
METHODS = {
    **{name: {"method": name} for name in ("zo-sgd", "zo-adam", "zo-sgd-block", "zo-sgd-cons", "conmezo")},
    "zo-sgd-sparse": {"method": "zo-sgd-sparse", "sparsity": 0.5},
    "two queries": {"queries": 2},
    "forward-grad": {"method": "forward-grad"},
    "fzoo": {"method": "fzoo", "queries": 3},
    "hizoo": {"method": "hizoo", "options": {"smooth": 1e-2}},
}


class Shards:
    """One engine that looks at each shard of a batch after the other: what several ranks do at once."""

    def __init__(self, engine, count):
        self.engine, self.count, self.parts = engine, count, engine.parts

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def probe(self, batch, points):
        return self._mean(batch, lambda part: self.engine.probe(part, points))

    def tangent(self, batch, seed):
        return self._mean(batch, lambda part: self.engine.tangent(part, seed))

    def _mean(self, batch, look):
        parts = [batch.shard(index, self.count) for index in range(self.count)]
        outcomes = [(int((part.labels[:, 1:] != -100).sum()), look(part)) for part in parts]
        total = sum(n for n, _ in outcomes)
        return [sum(n * row[at] for n, row in outcomes) / total for at in range(len(outcomes[0][1]))]


@pytest.fixture(scope="module")
def methods_run(tmp_path_factory):
    """With two shards an engine that looks twice has perturbed in place twice, so those cases have counter noise."""
    cases = []
    for way, noise in (("pertp", "torch"), ("pertp", "counter"), ("ddp", "counter")):
        for fields in METHODS.values():
            if way == "pertp" and not KINDS.get(fields.get("method", "zo-sgd")).has_pairs:
                continue
            placed = {"tier": "pageable", "noise": noise}
            case = a_case("opt-tiny", way, 2, placed, "ragged")
            cases.append({**case, "spec": {**case["spec"], "steps": FEW, "noise": noise, **fields}})
    return cases, *run_ranks(cases, 2, tmp_path_factory.mktemp("methods"))


@pytest.mark.slow
def test_every_method_equals_one_engine_that_looks_at_all_shards(methods_run):
    cases, ranks, tensors, _ = methods_run
    for number, case in enumerate(cases):
        spec = RunSpec(**case["spec"])
        with rank.engine(case, spec) as engine:
            alone, method = Shards(engine, shards_of(spec)), methods.make(spec)
            steps = [method.step(alone, batch) for batch in batches_of(spec, FEW)]
            final = {name: value.clone() for name, value in engine.named_tensors()}
        for outcomes, rank_result in zip(ranks, tensors[number], strict=True):
            assert outcomes[number]["losses"] == [step.loss for step in steps], case
            assert outcomes[number]["gs"] == [step.projected_grad for step in steps], case
            assert rank_result.keys() == final.keys()
            assert all(torch.equal(rank_result[name], final[name]) for name in final), case
        assert len({step.projected_grad for step in steps}) == FEW


@pytest.mark.slow
def test_ranks_exchange_less_than_a_kilobyte_a_step(cases_run):
    """As the kernel counts it, Gloo's headers included, of every rank in every strategy: in the median of its steps,
    because on a busy machine a single step was outside once, which the same code was not when it ran again."""
    _, cases, _, _, sent = cases_run
    for number, case in enumerate(cases):
        for count in sent:
            assert len(count[number]) == STEPS
            assert 0 < median(count[number]) < 1024, (case, count[number])


def ran(run=cell.run, **changes):
    fields = {"model": "opt-tiny", "method": "fo-adam", "engine": "resident", "device": "cpu", "data": "ragged"}
    sizes = {"batch_size": 4, "seq_len": 16, "steps": 4, "warmup": 0}
    result = run(RunSpec(**{**fields, **sizes, **changes}).resolve("cpu"))
    assert result.outcome is Outcome.OK, result.reason
    return result


@pytest.mark.slow
def test_sharded_steps_are_those_of_one_device():
    """Losses and gradients' norms, of shards that count different numbers of tokens."""
    still, alone = ran(lr=0.0), ran(lr=1e-2)
    shared = ran(run_in_process, lr=1e-2, gpus=2, parallel="fsdp")
    losses, norms = (alone.samples[name] for name in ("loss", "projected_grad"))
    assert abs(losses[-1] - still.samples["loss"][-1]) > 0.01  # the steps have moved the weights
    assert shared.samples["loss"] == pytest.approx(losses, rel=2e-6)
    assert shared.samples["projected_grad"] == pytest.approx(norms, rel=2e-5)
    rows = shared.environment.ranks
    assert len(rows) == 2
    assert all(row["device_peak_bytes"] > 0 for row in rows)
