"""What the predictor counts of a step is what the real engine issues: operations, bytes and launches, each exactly, by
running the engine on the meta device and pricing only one kind of work."""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tools.operators import FREE, ROW
from zobench import kernels, models
from zobench.cost import gpu, hardware, sizes
from zobench.data.batch import Batch
from zobench.engine import Engine, EngineConfig, Entry, Point
from zobench.engine.backprop import Backprop
from zobench.engine.directions.perturb import is_decayed
from zobench.engine.weights.tiers import NoTier
from zobench.measure.ledger import AsCuda
from zobench.models.weights import RandomWeights
from zobench.runspec import METHODS, RunSpec

TOKENS, MORE = 48, 2
"""Tokens of the one sequence, and layers by which the two models differ whose counts are compared."""
PRODUCTS, NOISE = {"mm", "addmm", "bmm"}, {"normal_", "mul_", "add_", "sub_"}


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)


class Counting(TorchDispatchMode):
    """Operations of products and attention, bytes of operations on activations and of passes over weights, launches."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self:
            result = func.decompose(*args, **kwargs)
        if result is NotImplemented:
            result, name = func(*args, **kwargs), str(func.overloadpacket).rpartition(".")[2]
            if name not in FREE:
                self._count(name, list(_tensors(args)), list(_tensors(result)))
        return result

    def _count(self, name: str, given: list[Tensor], made: list[Tensor]) -> None:
        self.seen["kernels"] += 1
        if name in PRODUCTS:
            self.seen["products"] += 2 * given[-2].numel() * given[-1].shape[-1]
        elif "attention" in name:
            rows, heads, tokens, width = given[0].shape
            self.seen["attention"] += 2 * rows * heads * tokens**2 * width  # half of the scores: it is causal
        elif name in NOISE:
            self.seen["weights"] += 0 if name == "normal_" else sum(map(_bytes, given)) + _bytes(given[0])
            self.seen["normals"] += given[0].numel() if name == "normal_" else 0
        else:
            new = [tensor for tensor in made if all(tensor is not other for other in given)]
            largest = max((tensor.numel() for tensor in new), default=0)
            whole = 1 if name in ("cat", "mean") else largest  # any other operand that is smaller is broadcast
            self.seen["activations"] += sum(
                _bytes(tensor) for tensor in (*given, *new) if tensor.numel() >= max(whole, ROW * TOKENS)
            )


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _counted(function: Any, seen: Counter[str], name: str) -> Any:
    def counting(*args: Any, **kwargs: Any) -> Any:
        seen[name] += 1
        return function(*args, **kwargs)

    return counting


@contextmanager
def running(spec: RunSpec, layers: int) -> Iterator[Callable[[int], None]]:
    """The engine of ``spec`` with so many layers on the meta device: what takes its n-th step."""
    model = models.build(dataclasses.replace(models.get(spec.model), layers=layers), spec.dtype)
    ids = torch.zeros(spec.batch_size, TOKENS, dtype=torch.long)
    config = EngineConfig(
        device="meta", placement=spec.engine, noise=spec.noise, granularity=spec.granularity, wire=spec.wire,
        slots=spec.slots, writeback_every=spec.writeback_every, accumulate=spec.accumulate,
    )  # fmt: skip

    signs = (1, -1) if METHODS.get(spec.method).has_pairs else (1,)

    def step(number: int) -> None:
        seeds = [9 * number + query for query in range(spec.queries)]
        engine.probe(Batch(ids, ids), [Point(seed, sign * 1e-3) for seed in seeds for sign in signs])
        engine.commit([Entry(step=number, seed=seed, g=1.0, lr=1e-7) for seed in seeds])

    with Engine(model, config, weights=RandomWeights(model, 0)) as engine, AsCuda():
        yield step


def issued(spec: RunSpec, layers: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What the engine issues in a settled step of ``spec`` with so many layers."""
    with running(spec, layers) as step:
        step(0)
        mode = Counting()

        def weigh(each: kernels.Pass) -> None:
            mode.seen["weights"] += each.elements * each.width * each.moved

        with monkeypatch.context() as patch, kernels.watched(weigh), mode:
            for name in ("advance", "advance_flat", "flip"):  # which have no operator
                patch.setattr(kernels, name, _counted(getattr(kernels, name), mode.seen, "counter kernels"))
            step(1)
    return mode.seen


FREE_OF_CHARGE = dataclasses.replace(
    hardware.load("a100-80gb-sxm"), fp16=math.inf, fp32=math.inf, hbm=math.inf, clock=math.inf, idle_tiles=0.0,
    kernel=0.0, passes=1.0, fp16_products=1.0, fp32_products=1.0, fused_attention=1.0, fp32_attention=1.0,
)  # fmt: skip
"""A GPU on which nothing takes time: each test charges a second for one thing, so that seconds count it."""


def counted(spec: RunSpec, part: str, **prices: float) -> float:
    """What the predictor counts as ``part`` of MORE blocks, where ``prices`` make it cost a second."""
    costs = gpu.Costs(spec, dataclasses.replace(FREE_OF_CHARGE, **prices), 1.0).blocks()
    return costs[part] / models.get(spec.model).layers * MORE


FORMS: list[dict[str, Any]] = [
    {"model": "opt-tiny", "dtype": "fp32"}, {"model": "llama-tiny", "queries": 2}, {"model": "qwen3-tiny"},
    {"model": "opt-tiny", "noise": "counter", "engine": "offload", "queries": 3, "granularity": "linear"},
    {"model": "opt-tiny", "noise": "counter", "engine": "offload", "writeback_every": 4, "granularity": "tile"},
    {"model": "opt-tiny", "noise": "counter", "engine": "offload", "queries": 3, "method": "es"},  # no opposite points
    {"model": "opt-tiny", "batch_size": 2, "accumulate": 2},
    {
        "model": "opt-tiny", "noise": "counter", "engine": "offload", "granularity": "tile", "batch_size": 2,
        "accumulate": 2,
    },
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(map(str, form.values())))
def test_operations_bytes_and_launches_of_blocks_are_those_that_the_engine_issues(form, monkeypatch) -> None:
    spec = RunSpec(**{"dtype": "fp16", "seq_len": TOKENS, **form}).resolve("cuda:0")
    layers = models.get(spec.model).layers
    few, many = (issued(spec, count, monkeypatch) for count in (layers, layers + MORE))
    seen = Counter({name: many[name] - few[name] for name in many})
    assert counted(spec, "products", fp16=1.0, fp32=1.0) == seen["products"] > 0
    assert counted(spec, "attention", fp16=1.0, fp32=1.0) == seen["attention"] > 0
    assert counted(spec, "passes", hbm=1.0) == seen["activations"] > 0
    assert counted(spec, "kernels", kernel=1.0) == seen["kernels"] + seen["counter kernels"]
    width = 4 if spec.dtype == "fp32" else 2
    assert counted(spec, "noise", hbm=1.0) == seen["weights"] + width * seen["normals"] > 0


@pytest.mark.parametrize(
    ("method", "queries", "passes"),
    [("zo-sgd", 1, 2), ("zo-sgd-cons", 1, 4), ("hizoo", 1, 2), ("qes", 2, 4), ("fzoo", 2, 2), ("forward-grad", 1, 1)],
)
def test_opposite_points_are_flipped_where_they_are_mirror_images(method: str, queries: int, passes: int) -> None:
    """QES draws both points of a pair; what has no pairs flips nothing."""
    spec = RunSpec(model="opt-tiny", noise="counter", method=method, queries=queries).resolve("cuda:0")
    assert gpu.Costs(spec, FREE_OF_CHARGE, 1.0)._noise(1.0, tensors=1, units=1)[1] == passes


class Passing(Counting):
    """Bytes that operators on a GPU read and write of distinct tensors, and launches."""

    def _count(self, name: str, given: list[Tensor], made: list[Tensor]) -> None:
        read = {id(tensor): tensor for tensor in given if tensor.is_meta}
        self.seen["kernels"] += bool(read)
        self.seen["bytes"] += sum(map(_bytes, read.values())) + sum(_bytes(tensor) for tensor in made if tensor.is_meta)


@pytest.mark.parametrize(("method", "weight_decay"), [("fo-sgd", 0.0), ("fo-adam", 0.1)])
def test_an_optimizer_moves_the_bytes_and_runs_the_kernels_of_torchs(method: str, weight_decay: float) -> None:
    """Each tensor by itself; the norm of all gradients is a few numbers and kernels more."""
    spec = RunSpec(model="opt-tiny", dtype="fp32", method=method, weight_decay=weight_decay).resolve("cpu")
    model, ids = models.build(spec.model, spec.dtype), torch.empty(1, TOKENS, dtype=torch.long, device="meta")
    config = EngineConfig(device="meta", placement="resident")
    with Backprop(model, config, weights=RandomWeights(model, 0)) as engine:
        for _ in range(2):  # the first makes Adam's state
            engine.backward(Batch(ids, ids))
            with Passing() as mode:
                engine.gradient_norm()
                engine.update(method.removeprefix("fo-"), lr=1e-3, weight_decay=weight_decay, foreach=False)
    sizes = {name: tensor.numel() for name, tensor in model.named_parameters()}
    undecayed = sum(not is_decayed(name) for name in sizes) if weight_decay else 0
    costs = gpu.Costs(spec, dataclasses.replace(FREE_OF_CHARGE, hbm=1.0), 1.0)
    nbytes, kernels = costs._by_gradients(sum(sizes.values()), len(sizes))
    assert mode.seen["bytes"] == pytest.approx(nbytes, rel=0.01)
    assert 0 <= mode.seen["kernels"] - (kernels - undecayed) <= 2


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("layers", [0, 1, 2])
def test_the_hybrid_moves_its_lower_blocks_and_what_comes_before_them(layers: int, tied: bool) -> None:
    """All but a last norm of what the predictor counts."""
    fields: dict[str, Any] = {"method": "hybrid", "zo_layers": layers, "tie_embeddings": tied}
    spec = RunSpec(model="opt-tiny", dtype="fp32", seq_len=TOKENS, **fields).resolve("cuda:0")
    model = models.build(spec.model, spec.dtype, tied)
    ids = torch.empty(1, TOKENS, dtype=torch.long, device="meta")
    config = EngineConfig(device="meta", placement="resident")
    with Backprop(model, config, weights=RandomWeights(model, 0), zo_layers=layers) as engine, Counting() as mode:
        engine.probe(Batch(ids, ids), [Point(1, 1e-3), Point(1, -1e-3)])
        engine.commit([Entry(step=0, seed=1, g=1.0, lr=1e-7)])
    costs = gpu.Costs(spec, dataclasses.replace(FREE_OF_CHARGE, hbm=1.0), 1.0)
    predicted = costs.blocks()["noise"] + costs.outside()["noise"]
    assert predicted == pytest.approx(mode.seen["weights"] + 4 * mode.seen["normals"], rel=0.01)
    assert 4 * sizes.drawn(spec) == pytest.approx(mode.seen["normals"], rel=0.01)


@pytest.mark.parametrize("form", [{"wire": "fp8"}, {"writeback_every": 2}], ids=str)
def test_the_bytes_over_the_link_are_those_that_the_engine_moves(form, monkeypatch) -> None:
    fields = {"model": "OPT-125M", "dtype": "fp16", "engine": "offload", "noise": "counter", "seq_len": TOKENS, **form}
    spec = RunSpec(**fields).resolve("cuda:0")
    layers, every = models.get(spec.model).layers, int(spec.writeback_every)
    seen = Counter[str]()

    def moves(way: str) -> Callable[..., None]:
        def move(tier: NoTier, block: int, slot: Tensor, first: int = 0) -> None:
            seen[way] += _bytes(slot)

        return move

    for way in ("upload", "offload"):
        monkeypatch.setattr(NoTier, way, moves(way))

    def moved(steps: int) -> Counter[str]:
        seen.clear()
        with running(spec, layers) as step:
            for number in range(steps):
                step(number)
        return seen.copy()  # the lanes are idle

    first, all_steps = moved(every), moved(3 * every)
    costs = gpu.Costs(spec, dataclasses.replace(FREE_OF_CHARGE, link_one=1.0, link_both=1.0), 1.0)
    bytes_a_step = {way: taken * costs.gpu.pcie for way, taken in costs.moving().items()}
    settled = {way: (all_steps[way] - first[way]) / (2 * every) for way in all_steps}
    assert bytes_a_step == pytest.approx(settled, rel=6e-3)  # whole pages, and the scales of fp8
