"""One host copy for several ranks, whole and sliced, against the run of a single process, with `==`."""

import itertools
import json

import pytest
import torch
from safetensors.torch import load_file

from tests.support.fake_nvml import FakeNvml
from tests.support.forked_ranks import run_ranks
from tests.support.host_rank import alone, steps_of
from tests.support.parity import engine_of
from zobench import RunSpec
from zobench.machine.accelerator import Accelerator
from zobench.machine.nvml import Nvml
from zobench.parallel import hosts
from zobench.parallel.world import PeerGoneError

STEPS = 5
WORLDS = {2: "pertp", 4: "2d"}
ENGINES = (
    {"slots": 1},
    {"reusable_memory": False},
    {"fused_update": False},
    {"wire": "fp8"},
    {"noise": "counter", "slots": 2},
    {"noise": "counter", "overlap": False, "reusable_memory": False},
    {"noise": "counter", "granularity": "tile", "slots": 5},
    {"noise": "counter", "writeback_every": 4},
    {"noise": "counter", "writeback_every": 4, "wire": "fp8", "granularity": "linear"},
)
SLOW = 0.03
"""Seconds: some hundred times a transfer of these blocks."""


def a_case(model, gpus, transfers, engine, **more):
    spec = {
        "model": model, "parallel": WORLDS[gpus], "gpus": gpus, "batch_size": 4, "seq_len": 9, "steps": STEPS,
        "lr": 1e-4, "seed": 7, "noise": engine.get("noise", "torch"), "device": "cpu", "engine": "offload",
        "tier": "pageable", "transfers": transfers,
    }  # fmt: skip
    return {"spec": spec, "engine": engine, **more}


def launch(gpus, cases, spec, folder):
    (folder / "told.json").write_text(json.dumps({"spec": spec, "cases": cases}))
    words = folder / "told.json", folder / "out"
    with pytest.MonkeyPatch.context() as patch:
        if (
            not cases
        ):  # memory is measured, of which forks share: what was freed may stay, or not, without the threshold
            patch.setenv("MALLOC_MMAP_THRESHOLD_", str(1 << 20))
        run_ranks("tests.support.host_rank", gpus, words, folder / "log", start="forkserver" if cases else "spawn")
    return [json.loads((folder / f"out.{rank}.json").read_text()) for rank in range(gpus)]


@pytest.fixture(scope="module")
def single():
    """What one process with a copy of its own gets: (losses, gs, tensors)."""
    known = {}

    def run(case):
        key = json.dumps([case["spec"]["model"], case["engine"]])
        if key not in known:
            with engine_of(case["spec"]["model"], **case["engine"]) as engine:
                steps = steps_of(case, engine)
                tensors = dict(engine.named_tensors())
            known[key] = [step.loss for step in steps], [step.projected_grad for step in steps], tensors
        return known[key]

    return run


def is_that(case, gpus, number, ranks, folder, single):
    """Whether every rank got the single process's bits."""
    losses, gs, tensors = single(case)
    assert len(set(gs)) == STEPS
    for rank in range(gpus):
        saved = load_file(folder / f"out.{number}.{rank}.safetensors")
        if ranks[rank][number] != {"losses": losses, "gs": gs} or saved.keys() != tensors.keys():
            return False
        if not all(torch.equal(saved[key], tensors[key]) for key in saved):
            return False
    return True


def plain_cases(gpus):
    """Each engine with each way, on one of two models; on four ranks, which share the cores, with one way in turn."""
    ways = ("whole", "sliced", "naive")
    return [
        a_case(("opt-tiny", "qwen3-tiny")[number % 2], gpus, way, engine)
        for number, engine in enumerate(ENGINES)
        for way in (ways if gpus == 2 else ways[number % 3 :][:1])
    ]


def delays(gpus, **first):
    """The same delay on every rank but the last, which has none."""
    return {str(rank): first for rank in range(gpus - 1)}


def slow_cases(gpus):
    slow = [delays(gpus, upload=SLOW), delays(gpus, offload=SLOW)]
    return [
        a_case("opt-tiny", gpus, transfers, {"slots": 3, "noise": "counter"}, delays=delay)
        for transfers in ("whole", "sliced")[: 4 // gpus]
        for delay in slow
    ]


def hasty_cases(gpus):
    return [
        a_case("opt-tiny", gpus, "whole", {"slots": 3}, delays=delays(gpus, offload=SLOW), planted=hosts.WRITES),
        a_case("opt-tiny", gpus, "whole", {"slots": 3}, delays=delays(gpus, upload=SLOW), planted=hosts.UPLOADS),
    ]


@pytest.fixture(scope="module", params=(2, 4))
def cases_run(request, tmp_path_factory, single):
    """All cases on this many ranks, which start once: the case, what came of it on each, and whether it is right."""
    gpus, folder = request.param, tmp_path_factory.mktemp(f"hosts{request.param}")
    resumed = [a_case("opt-tiny", 2, way, {"noise": "torch"}, way="resumed") for way in ("whole", "sliced")]
    parts = {"plain": plain_cases(gpus), "slow": slow_cases(gpus), "hasty": hasty_cases(gpus)}
    parts["resumed"] = resumed if gpus == 2 else []
    cases = [case for part in parts.values() for case in part]
    ranks = launch(gpus, cases, cases[0]["spec"], folder)
    parts_of_cases, number = {}, 0
    for name, part in parts.items():
        parts_of_cases[name] = []
        for case in part:
            same = name != "resumed" and is_that(case, gpus, number, ranks, folder, single)
            parts_of_cases[name].append((case, [rank[number] for rank in ranks], same))
            number += 1
    return parts_of_cases


@pytest.mark.slow
def test_ranks_over_one_copy_get_the_bits_of_a_single_process(cases_run):
    assert [case for case, _, same in cases_run["plain"] if not same] == []


@pytest.mark.slow
def test_slow_lanes_change_nothing_and_a_missing_wait_is_found(cases_run):
    assert [case for case, _, same in cases_run["slow"] if not same] == []
    assert [same for _, _, same in cases_run["hasty"]] == [False, False]


@pytest.mark.slow
def test_two_ranks_take_less_than_1_3_times_the_memory_of_one(tmp_path):
    spec = a_case("opt-tiny", 2, "whole", {"noise": "counter"})["spec"]
    (tmp_path / "one").mkdir()
    plain = alone(RunSpec(**spec)).to_dict()
    (single,) = launch(1, [], plain, tmp_path / "one")[0]
    single_bytes = sum(single["bytes"].values())
    assert single_bytes > single["blocks"]  # that much rests in host memory at least
    for two in zip(*launch(2, [], spec, tmp_path), strict=True):  # whole, and sliced
        together = sum(sum(rank["bytes"].values()) for rank in two)
        assert sum(rank["bytes"]["Shmem"] for rank in two) >= single["blocks"]
        assert together < 1.3 * single_bytes, (single, two)


@pytest.mark.slow
def test_ranks_start_from_the_parts_that_each_has_read_and_all_know_it(cases_run):
    for _, ranks, _ in cases_run["resumed"]:
        for answer in ranks:
            assert answer["changed"] == [False] + [True] * (len(answer["changed"]) - 1)
            assert answer["applied"] == [0] + [STEPS] * (len(answer["applied"]) - 1)
            assert len(answer["changed"]) > 1
            assert answer["same"]
            assert answer["first differs"]
            assert answer["refused"]


def test_parts_are_whole_pages_and_make_the_block():
    for ranks in (2, 3, 4):
        shared = object.__new__(hosts.SharedHosts)
        shared._ranks = ranks
        for nbytes in (1, 4096, 4096 * ranks, 4096 * ranks + 1):
            padded = shared.padded(nbytes)
            edges = [hosts.part_of(padded, rank, ranks) for rank in range(ranks)]
            assert nbytes <= padded < nbytes + hosts.PAGE * ranks
            assert edges[0][0] == 0
            assert edges[-1][1] == padded
            assert all(a[1] == b[0] for a, b in itertools.pairwise(edges))
            assert all(edge % hosts.PAGE == 0 for pair in edges for edge in pair)


def test_a_silent_rank_is_named(monkeypatch):
    monkeypatch.setenv("ZOBENCH_PEER_TIMEOUT", "0.05")
    counts = hosts.Counts(torch.tensor([[[0, 0, 0]], [[1, 0, 0]]]), 0)
    counts.wait(1, 0, rank=0)
    counts.publish(1, 0, 2)
    with pytest.raises(PeerGoneError) as error:
        counts.wait(1, 0, 1)
    environment = "another rank of the run is gone, or was silent for 0.05 s: local rank 1 at block 0"
    assert str(error.value) == environment
    monkeypatch.setenv("ZOBENCH_PEER_TIMEOUT", "600")
    with pytest.raises(PeerGoneError):  # at once: this rank is to end
        counts.wait(0, 0, 1)


def test_naive_offload_writes_every_copy_back_and_the_others_a_copy_together():
    """In bytes of one block, after a write-back by each rank (DistZO2, section 6.1)."""
    ranks, size, counted = 4, 4096 * 4, {}
    for way, gather, naive in (("naive", None, True), ("whole", None, False), ("sliced", lambda *_: None, False)):
        block, slot = torch.zeros(size, dtype=torch.uint8), torch.arange(size).to(torch.uint8)
        counts = torch.zeros(4, 1, ranks, dtype=torch.int64)
        tiers = [
            hosts.SharedTier(
                [block], hosts.Counts(counts, rank), gather, coordinated=True, pinned=False, device="cpu", naive=naive
            )
            for rank in range(ranks)
        ]
        for tier in tiers:
            tier.offload(0, slot)
        assert torch.equal(block, slot)
        counted[way] = [tier.written for tier in tiers]
    assert counted == {"naive": [size] * ranks, "whole": [4096] * ranks, "sliced": [4096] * ranks}


def a_spec(**changes):
    return RunSpec(**a_case("opt-tiny", 4, "auto", {})["spec"]).replace(**changes)


class Linked(FakeNvml):
    """Two GPUs; ``status``: 0 where an NVLink is between them, as NVML answers."""

    def __init__(self, status, **more):
        super().__init__(**more)
        self.status = status

    def nvmlDeviceGetP2PStatus(self, a, b, kind):  # noqa: N802
        assert kind == 2
        return self._answer("nvmlDeviceGetP2PStatus", self.status)


@pytest.mark.parametrize(
    ("access", "nvml", "expected"),
    [
        (True, Linked(0), ("sliced", "transfers: sliced, because all GPUs of the node are linked as peers")),
        (True, Linked(0, fail=["nvmlDeviceGetP2PStatus"]), ("sliced", None)),
        (True, Linked(3), ("whole", "transfers: whole, because cuda:0 and cuda:1 have no NVLink between them")),
        (False, Linked(0), ("whole", "transfers: whole, because cuda:0 cannot access cuda:1")),
    ],
)
def test_gpus_take_slices_where_all_pairs_have_a_fast_link(access, nvml, expected, monkeypatch):
    monkeypatch.setattr(Accelerator, "reaches", lambda self, other: access)
    monkeypatch.setattr(Accelerator, "uuid", lambda self: f"GPU-{self.device.index}")
    monkeypatch.setattr(hosts, "Nvml", lambda: Nvml(nvml))
    kind, reason = hosts.transfers(a_spec(device="cuda", tier="pinned"), 2)
    assert kind == expected[0]
    assert expected[1] in (None, reason)
