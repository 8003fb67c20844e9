"""RunSpec: what it accepts, what it says about the rest, and a hash that changes only if the meaning does."""

import hashlib
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zobench.cost import budget
from zobench.result import Facts, Outcome, Result
from zobench.runspec import DECLARED, FIELDS, METHODS, RunSpec, labels, parse_value
from zobench.runspec.numeric import NumberField
from zobench.runspec.order import Order

GOLDEN = "9f4a892a1080"
"""Of RunSpec(model="OPT-125M"). A change orphans every stored result: only on purpose, with a new schema version."""

WHOLE = st.integers(0, 2**31 - 1)
FLOAT = st.floats(0, allow_nan=False, allow_infinity=False)
plain = {
    "model": st.text(min_size=1),
    "weights": st.just("pretrained"),
    "weights_path": st.text(),
    "tie_embeddings": st.none() | st.booleans(),
    **{name: st.sampled_from(DECLARED[name].choices) for name in ("engine", "dtype", "data")},
    "noise": st.sampled_from(["torch", "counter"]),
    "tier": st.sampled_from([tier for tier in DECLARED["tier"].choices if tier != "checkpoint"]),
    **{name: WHOLE.map(lambda n: max(n, 2)) for name in ("batch_size", "seq_len", "steps", "slots")},
    "queries": st.integers(1, 10_000),
    **dict.fromkeys(("warmup", "seed"), WHOLE),
    **dict.fromkeys(("lr", "weight_decay"), FLOAT),
    "eps": st.floats(0, exclude_min=True, allow_infinity=False),
    **dict.fromkeys(("overlap", "reusable_memory", "fused_update", "parts", "compile"), st.booleans()),
    "device": st.sampled_from(["auto", "cpu", "cuda", "cuda:1"]),
}
fast = {
    **plain,
    "engine": st.just("offload"),
    "noise": st.just("counter"),
    "survival": st.booleans(),
    "compile": st.just(False),
    "fused_update": st.just(True),
    "granularity": st.sampled_from(DECLARED["granularity"].choices),
    "wire": st.sampled_from(["none", "fp8"]),
    "writeback_every": st.integers(1, 2**31 - 1) | st.just("inf"),
    "resident_blocks": WHOLE,
}
sized = {name: values for name, values in fast.items() if name not in ("granularity", "slots", "resident_blocks")}
tuned = {
    **{
        name: values
        for name, values in plain.items()
        if name not in ("weights", "weights_path", "parts", "data", "compile")
    },
    "engine": st.just("resident"),
    "tier": st.sampled_from(["auto", "device"]),
    "noise": st.just("torch"),
    "queries": st.just(1),
    "weights": st.sampled_from(["random", "pretrained"]),
    **{name: st.sampled_from(DECLARED[name].choices) for name in ("scheme", "lr_schedule")},
    "method": st.sampled_from([kind.name for kind in METHODS.builtin() if kind.structure is None]),
    "task": st.just("sst2"),
    "aligned": st.booleans(),
    **dict.fromkeys(("train_size", "dev_size"), WHOLE.map(lambda n: max(n, 1))),
    "test_size": WHOLE,
    **dict.fromkeys(("shots", "eval_every"), WHOLE),
    **dict.fromkeys(("truncate", "length_grouping"), st.booleans()),
}


def tuned_spec(**values: Any) -> RunSpec:
    """Of any method, with what that needs."""
    drawn = RunSpec(model="OPT-125M", **{name: values[name] for name in ("scheme", "weight_decay") if name in values})
    return RunSpec(**values | METHODS.get(values["method"]).changes(drawn))


specs = (
    st.builds(RunSpec, **plain)
    | st.builds(RunSpec, **fast)
    | st.builds(tuned_spec, **tuned)
    | st.builds(RunSpec, **sized, device_memory=st.integers(0, 2**63 - 1))
)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"steps": 10**400}, "`steps <= 2147483647` must hold, but got steps=1000"),
        ({"queries": 10**9}, "`queries <= 10000` must hold, but got queries=1000000000; the papers use queries=1"),
        ({"dtype": "fp12"}, "`dtype` must be one of fp32, fp16, bf16, but got 'fp12'; did you mean fp32 or fp16?"),
        ({"eps": float("nan")}, "`eps` must be finite, but got nan; MeZO uses eps=1e-3"),
        ({"model": ""}, "`model` must be a name, but got ''; see `zobench list models`"),
        ({"device": "tpu"}, "`device` must be auto, cpu, cuda or cuda:N, but got 'tpu'; use device=auto"),
        ({"noise": "counter", "survival": True, "method": "sparse-mezo"},
         "`survival` needs a method whose update is lr * "
         "g * z, but got method=sparse-mezo, definition=as-written; use survival=false"),
        ({"steps": "5"}, "`steps` must be of type int, but got '5'; for example steps=5"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_run_is_named_with_its_constraint_and_a_remedy(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        RunSpec(**{"model": "OPT-125M", **changes})
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)


BOUNDED = {name: field for name, field in DECLARED.items() if isinstance(field, NumberField)}


@pytest.mark.parametrize("name", BOUNDED)
def test_a_number_beyond_its_bounds_is_named_with_the_bound_and_a_remedy(name: str) -> None:
    field = BOUNDED[name]
    beyond = [(f"> {field.above}", field.above), (f"< {field.below}", field.below)]
    beyond += [(f">= {field.lowest}", None if field.lowest is None else field.lowest - 1)]
    beyond = [(bound, field.types[0](value)) for bound, value in beyond if value is not None]
    assert beyond
    for bound, value in beyond:
        with pytest.raises(ValueError, match=r".") as caught:
            RunSpec(**{"model": "OPT-125M", name: value})
        assert str(caught.value) == f"`{name} {bound}` must hold, but got {name}={value}; {field.remedy}"
        assert field.remedy


OFFLOAD: dict[str, Any] = {"engine": "offload", "noise": "counter"}
CHECKPOINT: dict[str, Any] = {"engine": "offload", "noise": "counter", "tier": "checkpoint", "writeback_every": "inf"}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"granularity": "tile"},
         "`granularity=tile` needs noise=counter, but got noise=torch; torch noise can only be drawn a block at a "
         "time; use noise=counter"),
        ({"writeback_every": "inf"},
         "`writeback_every=inf` needs noise=counter, but got noise=torch; torch noise perturbs the weights in place,"
         " so an update that is not written back cannot be exact; use noise=counter"),
        (CHECKPOINT,
         "`tier=checkpoint` needs weights=pretrained, but got weights=random; only they have a checkpoint; "
         "use weights=pretrained"),
        (CHECKPOINT | {"weights": "pretrained", "writeback_every": 4},
         "`tier=checkpoint` needs writeback_every=inf, but got writeback_every=4; a checkpoint is only read; "
         "use writeback_every=inf"),
        (OFFLOAD | {"fused_update": False, "writeback_every": 4},
         "`fused_update=false` needs writeback_every=1, but got writeback_every=4; without the fused update every "
         "update is written back at once; use writeback_every=1"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together_are_named_with_a_remedy(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        RunSpec(**{"model": "OPT-125M", **changes})
    assert str(caught.value) == text


def test_an_unknown_key_names_the_nearest_and_a_missing_model_is_said() -> None:
    with pytest.raises(ValueError, match=r"^unknown key 'batchsize'; did you mean batch_size or test_size\?$"):
        RunSpec.from_dict({"model": "OPT-125M", "batchsize": 1})
    with pytest.raises(ValueError, match=r"^`model` must be given, but got no model; see `zobench list models`$"):
        RunSpec.from_dict({"steps": 1})


PERTP = RunSpec(model="OPT-125M", engine="offload", parallel="pertp", gpus=2, batch_size=4)
LATER = {name for name, field in DECLARED.items() if not field.always_hashed}


def test_a_rank_with_one_sign_was_exact_before_there_was_another_way_and_keeps_that_hash() -> None:
    """The hash that 0.2.0 gave of PertP and 2D is that of exact=true: what it stored went through both signs."""
    for spec, before in ((PERTP, "051c9aa61a56"), (PERTP.replace(parallel="2d", gpus=4), "302a32ace727")):
        exact = spec.replace(exact=True)
        stored = {name: value for name, value in spec.to_dict().items() if name != "exact"}
        assert exact.hash == before != spec.hash
        assert RunSpec.from_stored(stored) == exact
        assert RunSpec.from_stored(spec.to_dict()) == spec
    ddp = RunSpec(model="OPT-125M", parallel="ddp", gpus=2, batch_size=4)
    assert ddp.hash == "4b4f16ce3abc"
    message = r"^`exact=true` needs parallel=pertp or 2d or 2d-outer, but got parallel=ddp;"
    with pytest.raises(ValueError, match=message):
        ddp.replace(exact=True)


def test_a_later_field_at_its_default_changes_no_hash() -> None:
    stored = RunSpec(model="OPT-125M").to_dict()
    before = {key: value for key, value in stored.items() if key not in LATER}
    assert RunSpec.from_dict(before).hash == GOLDEN
    later: tuple[dict[str, Any], ...] = ({"queries": 2}, {"compile": True}, {"method": "zo-adam"}, {"task": "sst2"})
    hashes = {RunSpec(model="OPT-125M", **change).hash for change in later}
    assert len(hashes | {GOLDEN}) == 5


OLD = (
    "model", "weights", "weights_path", "tie_embeddings", "engine", "tier", "dtype", "batch_size", "seq_len", "steps",
    "warmup", "seed", "lr", "eps", "weight_decay", "noise", "overlap", "reusable_memory", "fused_update", "slots",
    "device", "data", "parts",
)  # fmt: skip
"""The fields of the first stored results: they are in every hash, all others only where they say something."""


def test_only_the_first_fields_are_in_the_hash_of_a_spec_that_has_nothing_else() -> None:
    fields = {name: value for name, value in RunSpec(model="OPT-125M").to_dict().items() if name in OLD}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest()[:12] == GOLDEN
    assert set(FIELDS) - set(OLD) == LATER


def test_numbers_that_are_equal_have_one_hash() -> None:
    assert RunSpec(model="m", weight_decay=-0.0).hash == RunSpec(model="m", weight_decay=0).hash
    assert RunSpec(model="m", lr=1).hash == RunSpec(model="m", lr=1.0).hash


@given(specs, st.randoms())
def test_a_spec_survives_json_and_its_hash_ignores_the_order_of_keys(spec: RunSpec, shuffler: random.Random) -> None:
    items = list(json.loads(json.dumps(spec.to_dict())).items())
    shuffler.shuffle(items)
    again = RunSpec.from_dict(dict(items))
    assert again == spec
    assert again.hash == spec.hash
    assert len(spec.hash) == 12


@given(specs, st.sampled_from(["cpu", "cuda:0"]))
def test_resolving_twice_changes_nothing_more(spec: RunSpec, device: str) -> None:
    try:
        resolved = spec.resolve(device)
    except ValueError as error:
        assert str(error).startswith("`tier=")  # noqa: PT017
        return
    assert resolved.resolve(device) == resolved
    assert (resolved.device, "auto" in resolved.tier) == (device, False)


@pytest.mark.parametrize(
    "changes", [{"tier": "disk"}, {"slots": 7}, {"overlap": False}, {"fused_update": False}, {"parts": True}]
)
def test_what_has_no_effect_on_a_resident_run_makes_no_other_cell(changes: dict[str, Any]) -> None:
    plain = RunSpec(model="OPT-125M").resolve("cpu")
    assert RunSpec(model="OPT-125M", **changes).resolve("cpu") == plain


@pytest.mark.parametrize("change", [{"granularity": "tile"}, {"slots": 5}])
def test_what_the_planner_chooses_cannot_be_given_too(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"`device_memory=1GB` needs .*; the planner chooses (it|them); leave .* out"):
        RunSpec(model="OPT-125M", **OFFLOAD, device_memory=10**9, **change)


def test_sizes_and_infinity_may_be_written_as_a_matrix_has_them() -> None:
    written = RunSpec(model="OPT-125M", **OFFLOAD, device_memory="8GB", writeback_every=float("inf"))  # type: ignore[arg-type]
    assert written == RunSpec(model="OPT-125M", **OFFLOAD, device_memory=8 * 10**9, writeback_every="inf")


def test_the_arithmetic_of_a_resident_run_makes_another_cell() -> None:
    plain = RunSpec(model="OPT-125M", noise="counter")
    changes: list[dict[str, Any]] = [{"granularity": "linear"}, {"writeback_every": "inf"}, {"queries": 2}]
    assert len({plain.replace(**change).resolve("cpu").hash for change in ({}, *changes)}) == 4


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [("tier", "device", "needs engine=resident"), ("tier", "pinned", "needs a CUDA device"),
     ("autocast", "tf32", "needs a CUDA device")],
)  # fmt: skip
def test_what_this_device_cannot_have_is_refused(field: str, value: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"^`{field}={value}` {text}, but got .*; use {field}="):
        RunSpec(**{"model": "OPT-125M", "engine": "offload", field: value}).resolve("cpu")


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("steps", "7", 7), ("lr", "1e-3", 1e-3), ("lr", "1", 1.0), ("overlap", "False", False), ("parts", "on", True),
        ("tie_embeddings", "none", None), ("tie_embeddings", "no", False), ("model", " opt-tiny ", "opt-tiny"),
        ("device_memory", "8GB", 8 * 10**9), ("device_memory", "512 mb", 512 * 10**6), ("device_memory", "123", 123),
        ("device_memory", "4GiB", 2**32), ("device_memory", "1.5GB", 1_500_000_000), ("writeback_every", "4", 4),
        ("writeback_every", "INF", "inf"), ("compile", "yes", True),
    ],
)  # fmt: skip
def test_text_is_read_as_the_fields_type(key: str, text: str, value: Any) -> None:
    read = parse_value(key, text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("steps", "1e3", "`steps` must be a whole number, but got '1e3'; for example steps=5"),
        ("lr", "fast", "`lr` must be a number, but got 'fast'; for example lr=1e-07"),
        ("parts", "2", "`parts` must be true or false, but got '2'; write parts=true or parts=false"),
        ("writeback_every", "x",
         "`writeback_every` must be a whole number or inf, but got 'x'; for example writeback_every=1"),
        ("device_memory", "8XB",
         "`device_memory` must be a size, but got '8XB'; write device_memory=8GB, 512MB or 4GiB"),
    ],
)  # fmt: skip
def test_text_that_cannot_be_read_is_an_error_with_an_example(key: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_value(key, text)
    assert str(caught.value) == message


@given(specs)
def test_the_text_of_every_value_reads_back_as_that_value(spec: RunSpec) -> None:
    for key in FIELDS:
        value = getattr(spec, key)
        if not isinstance(value, str):
            assert parse_value(key, str(value)) == value


def test_a_label_names_what_is_not_the_papers() -> None:
    spec = RunSpec(model="OPT-125M", **OFFLOAD, writeback_every="inf", wire="fp8", queries=4, compile=True)
    message = "queries=4 counter writeback_every=inf wire=fp8"
    assert spec.resolve("cpu").label == f"OPT-125M offload/disk fp32 b1 s2048 {message} compile"
    limited = RunSpec(model="OPT-125M", **OFFLOAD, device_memory=512 * 10**6, overlap=False).resolve("cpu")
    assert limited.label == "OPT-125M offload/disk fp32 b1 s2048 no_overlap counter device_memory=512MB"


def test_a_label_names_method_scheme_and_task_by_their_own_words() -> None:
    spec = RunSpec(
        model="OPT-125M", method="zo-sgd-sparse", sparsity=0.5, definition="as-shipped", scheme="lora", task="sst2",
        aligned=False, shots=16, eval_every=100, lr_schedule="cosine",
    )  # fmt: skip
    message = "zo-sgd-sparse as-shipped sparsity=0.5 lr_schedule=cosine lora sst2 no_aligned shots=16"
    assert (
        spec.resolve("cpu").label == f"OPT-125M resident fp32 b1 s2048 {message}"
    )  # when it is evaluated says nothing


def test_a_result_survives_json_and_what_is_not_finite_becomes_null() -> None:
    nan, inf = float("nan"), float("inf")
    result = Result(
        spec=RunSpec(model="OPT-125M"), outcome=Outcome.OK,
        environment=Facts(other={"rate": inf, "deep": [{"x": (1.0, nan)}]}),
        samples={"loss": [0.1, nan, -inf]}, memory={"device_peak_bytes": None},
        timeline=[["compute", "compute", 0, 0.1]],
    )  # fmt: skip
    back = Result.from_dict(json.loads(json.dumps(result.to_dict(), allow_nan=False)))
    assert back.samples == {"loss": [0.1, None, None]}
    assert back.environment == Facts(other={"rate": None, "deep": [{"x": [1.0, None]}]})
    assert (back.spec, back.outcome, back.memory, back.timeline) == (
        result.spec, result.outcome, result.memory, result.timeline
    )  # fmt: skip
    assert back.to_dict() == result.to_dict()


@pytest.mark.parametrize("changes", [{"parallel": "pertp", "exact": True}, {"parallel": "pertp"}, {"parallel": "ddp"}])
def test_ranks_have_a_run_on_one_device(changes: dict[str, Any]) -> None:
    """Their weights are evaluated by one device, and a protocol counts their forwards as one device's."""
    ranks = RunSpec(model="OPT-125M", gpus=2, batch_size=2, engine="offload", **changes)
    assert ranks.alone() == RunSpec(model="OPT-125M", batch_size=2, engine="offload")
    assert budget.forwards(ranks) == 2


def cell(**changes: object) -> RunSpec:
    return RunSpec(**{"model": "OPT-125M", **changes})  # type: ignore[arg-type]


def test_the_usual_value_of_an_axis_is_told_beside_the_others() -> None:
    assert labels([cell(seed=0), cell(seed=1)]) == [f"{cell().label} seed=0", cell(seed=1).label]
    wires = [cell(engine="offload", wire=wire) for wire in ("none", "fp16")]
    assert [label.split()[-1] for label in labels(wires)] == ["wire=none", "wire=fp16"]
    crossed = [cell(engine="offload", noise=noise, seed=seed) for noise in ("torch", "counter") for seed in (0, 1)]
    assert {"torch", "seed=0"} <= set(labels(crossed)[0].split())
    assert {"counter", "seed=1"} <= set(labels(crossed)[3].split())


def test_what_a_label_never_says_is_told_where_it_alone_tells_two_apart() -> None:
    assert [label.split()[-1] for label in labels([cell(steps=2), cell(steps=9)])] == ["steps=2", "steps=9"]
    assert cell(steps=9).label == cell().label
    both = [cell(steps=2), cell(steps=9, batch_size=2)]
    assert labels(both) == [spec.label for spec in both]


def test_an_order_is_the_same_after_it_went_to_the_process_of_its_cell() -> None:
    spec = RunSpec(model="opt-tiny", options={"interval": 5}, method="lozo", noise="counter").resolve("cpu")
    whole = Order(spec=spec, end=0.1 + 0.2, consolidation=(16, "why"), slowdown=0.05, turn=(5, 8), journal="a.journal")
    for order in (Order(spec=spec), whole):
        assert Order.from_dict(json.loads(json.dumps(order.to_dict()))) == order
