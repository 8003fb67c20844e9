"""Matrices: products of axes with variants, includes and excludes, and errors that name the file and the key."""

import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.files import written
from zobench import recipes
from zobench.recipes import matrix

AXES: dict[str, list[Any]] = {
    "model": ["OPT-125M", "OPT-1.3B", "opt-tiny", "LLaMA2-7B"],
    "dtype": ["fp32", "bf16", "fp16"],
    "batch_size": [1, 2, 4, 8],
    "seq_len": [16, 32, 64],
    "seed": [0, 1, 2],
}


def load(tmp_path: Path, text: str, device: str = "cpu", **changes: Any) -> tuple[Any, ...]:
    return matrix.load(written(tmp_path / "mine.toml", text), device, changes).cells


def toml(axes: dict[str, list[Any]], excluded: list[dict[str, Any]]) -> str:
    lines = ["[axes]", *(f"{key} = {values!r}" for key, values in axes.items())]
    for rule in excluded:
        lines += ["[[exclude]]", *(f"{key} = {value!r}" for key, value in rule.items())]
    return "\n".join(lines)


def parts_of(values: list[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from(values), min_size=1, unique=True)


axes = st.fixed_dictionaries(
    {"model": parts_of(AXES["model"])}, optional={k: parts_of(v) for k, v in AXES.items() if k != "model"}
)
rules = st.lists(
    st.fixed_dictionaries({}, optional={key: st.sampled_from(values) for key, values in AXES.items()}).filter(bool),
    max_size=3,
)


@settings(deadline=None, max_examples=40)
@given(axes, rules)
def test_a_matrix_is_the_product_of_its_axes_less_what_is_excluded(chosen, excluded) -> None:
    excluded = [rule for rule in excluded if rule.keys() <= chosen.keys()]
    with tempfile.TemporaryDirectory() as folder:
        full = load(Path(folder), toml(chosen, []))
        assert len(full) == len(set(full)) == math.prod(map(len, chosen.values()))
        kept = [c for c in full if not any(all(getattr(c, k) == v for k, v in rule.items()) for rule in excluded)]
        if kept:
            assert load(Path(folder), toml(chosen, excluded)) == tuple(kept)
        else:
            with pytest.raises(ValueError, match=r"^mine\.toml: a matrix must hold a cell, but this has none; give "):
                load(Path(folder), toml(chosen, excluded))


def test_a_rule_that_leaves_nothing_out_is_told(tmp_path: Path) -> None:
    (path := tmp_path / "mine.toml").write_text(
        '[axes]\nmodel = ["opt-tiny"]\nseq_len = [16, 32]\n[[exclude]]\nseq_len = 64\n[[exclude]]\nseq_len = 16\n'
    )
    message = "mine.toml: the rule of [[exclude]] seq_len=64 leaves nothing out; no cell has all of its values"
    assert matrix.load(path, "cpu").notes == (message,)
    assert matrix.load(path, "cpu", {"seq_len": 32}).notes == ()  # the command's change, not the file
    path.write_text(path.read_text() + "[on.cuda.axes]\nseq_len = [16, 64]\n")
    assert matrix.load(path, "cpu").notes == ()  # it leaves something out elsewhere


def test_cells_that_differ_in_a_field_without_effect_are_one_and_that_is_told(tmp_path: Path) -> None:
    (path := tmp_path / "mine.toml").write_text(
        '[base]\nmodel = "opt-tiny"\nengine = "resident"\n[axes]\noverlap = [true, false]\nseed = [0, 1]\n'
    )
    loaded = matrix.load(path, "cpu")
    assert (len(loaded.cells), [note[:37] for note in loaded.notes]) == (2, ["mine.toml: 4 cells are 2 different co"])


def test_a_rule_on_lengths_is_about_those_that_cells_run_with(tmp_path: Path) -> None:
    (path := tmp_path / "mine.toml").write_text('[axes]\nmodel = ["opt-tiny", "OPT-125M"]\n[[exclude]]\nseq_len = 64\n')
    loaded = matrix.load(path, "cpu")
    assert ([cell.model for cell in loaded.cells], loaded.notes) == (["OPT-125M"], ())


def test_the_last_axis_varies_fastest_and_variants_faster_still(tmp_path: Path) -> None:
    text = """
        [base]
        seq_len = 32
        engine = "offload"
        [axes]
        model = ["opt-tiny", "qwen3-tiny"]
        dtype = ["fp32", "bf16"]
        [[variants]]
        [[variants]]
        overlap = false
        [[include]]
        model = "llama-tiny"
        batch_size = 4
    """
    assert [cell.label for cell in load(tmp_path, text)] == [
        "opt-tiny offload/disk fp32 b1 s32", "opt-tiny offload/disk fp32 b1 s32 no_overlap",
        "opt-tiny offload/disk bf16 b1 s32", "opt-tiny offload/disk bf16 b1 s32 no_overlap",
        "qwen3-tiny offload/disk fp32 b1 s32", "qwen3-tiny offload/disk fp32 b1 s32 no_overlap",
        "qwen3-tiny offload/disk bf16 b1 s32", "qwen3-tiny offload/disk bf16 b1 s32 no_overlap",
        "llama-tiny offload/disk fp32 b4 s32",
    ]  # fmt: skip


def test_a_list_in_a_variant_or_an_include_stands_for_one_of_them_per_value(tmp_path: Path) -> None:
    text = """
        [base]
        seq_len = 32
        [axes]
        model = ["opt-tiny"]
        [[variants]]
        method = ["zo-sgd", "zo-adam"]
        lr = [1e-6, 1e-7]
        [[include]]
        model = ["opt-tiny", "qwen3-tiny"]
        method = "fo-sgd"
    """
    assert [(cell.model, cell.method, cell.lr) for cell in load(tmp_path, text)] == [
        ("opt-tiny", "zo-sgd", 1e-6), ("opt-tiny", "zo-sgd", 1e-7),
        ("opt-tiny", "zo-adam", 1e-6), ("opt-tiny", "zo-adam", 1e-7),
        ("opt-tiny", "fo-sgd", 1e-7), ("qwen3-tiny", "fo-sgd", 1e-7),
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"^mine\.toml: `steps` must be of type int, but got \[1\]; for example "):
        load(tmp_path, "[[include]]\nmodel = 'opt-tiny'\nsteps = [[1]]\n")


def test_cells_that_would_run_the_same_computation_appear_once(tmp_path: Path) -> None:
    text = '[axes]\nmodel = ["opt-tiny", "OPT-Tiny"]\nengine = ["resident"]\noverlap = [true, false]\nslots = [2, 3]\n'
    assert len(load(tmp_path, text)) == 1
    text = '[axes]\nmodel = ["opt-tiny"]\nengine = ["offload"]\ntier = ["auto", "disk"]\n'
    assert len(load(tmp_path, text)) == 1


def test_what_holds_on_one_kind_of_device_replaces_what_holds_everywhere(tmp_path: Path) -> None:
    text = """
        [base]
        steps = 20
        warmup = 3
        [axes]
        model = ["OPT-125M"]
        dtype = ["fp32", "fp16"]
        [on.cpu.base]
        steps = 5
        [on.cpu.axes]
        dtype = ["fp32", "bf16"]
        [[on.cuda.variants]]
        engine = "offload"
    """
    cpu, cuda = load(tmp_path, text), load(tmp_path, text, "cuda:0")
    assert [(cell.dtype, cell.steps, cell.warmup, cell.engine) for cell in cpu] == [
        ("fp32", 5, 3, "resident"), ("bf16", 5, 3, "resident")
    ]  # fmt: skip
    assert [(cell.dtype, cell.steps, cell.tier, cell.device) for cell in cuda] == [
        ("fp32", 20, "pinned", "cuda:0"), ("fp16", 20, "pinned", "cuda:0")
    ]  # fmt: skip


def test_a_base_that_holds_on_one_device_or_in_a_part_is_no_axis_there(tmp_path: Path) -> None:
    text = """
        base = { model = "OPT-125M" }
        axes = { seed = [0, 1], steps = [5, 10] }
        on = { cpu = { base = { seed = 7 } } }
    """
    assert [(cell.seed, cell.steps) for cell in load(tmp_path, text)] == [(7, 5), (7, 10)]
    assert len(load(tmp_path, text, "cuda:0")) == 4


def test_changes_hold_in_every_cell_and_exclusion_looks_at_what_then_holds(tmp_path: Path) -> None:
    text = """
        [axes]
        model = ["OPT-125M", "OPT-175B"]
        [[exclude]]
        model = "opt-175b"
        engine = "resident"
    """
    assert [cell.model for cell in load(tmp_path, text)] == ["OPT-125M"]
    assert [cell.model for cell in load(tmp_path, text, engine="offload")] == ["OPT-125M", "OPT-175B"]
    assert {cell.steps for cell in load(tmp_path, text, steps=2)} == {2}


def test_a_seq_len_that_is_not_given_is_what_the_model_can_take(tmp_path: Path) -> None:
    text = '[axes]\nmodel = ["opt-tiny", "OPT-125M", "Qwen3-4B"]\n'
    assert [cell.seq_len for cell in load(tmp_path, text)] == [64, 2048, 2048]
    assert [cell.seq_len for cell in load(tmp_path, text, seq_len=2048)] == [2048, 2048, 2048]
    with pytest.raises(ValueError, match=r"^`seq_len <= 64` must hold for llama-tiny, but got seq_len=2048; "):
        matrix.single({"model": "llama-tiny", "seq_len": 2048}, "cpu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("axis = 1", "unknown key 'axis' in the file; did you mean axes?"),
        ("[on.gpu.base]\nsteps = 1", "unknown key 'gpu' in [on]; did you mean cpu"),
        ("[axes]\nmodel = 'opt-tiny'", "axis 'model' must be a list, but got 'opt-tiny'; write model = ['opt-tiny']"),
        ("[base]\nsteps = [1, 2]", "`steps` must be one value in [base], but got [1, 2]; write its list in [axes]"),
        ("[axes]\nmodel = ['opt-tny']", "unknown model 'opt-tny'; did you mean opt-tiny"),
        ("[axes]\nmodel = ['opt-tiny']\nsteps = [0]", "`steps >= 1` must hold, but got steps=0; "),
        ("[[include]]\nmodel = 'opt-tiny'\ndevice = 'cpu'", "`device` must not be in a matrix, but is; choose "),
        ("[axes]\nmodel = ['opt-tiny']\n[[exclude]]", "a rule of [[exclude]] must name a field, but one is empty; "),
        ("[axes]\nmodel = ['opt-tiny']\n[[exclude]]\ndtype = 'fp61'", "`dtype` must be one of fp32, fp16, bf16, but "
         "got 'fp61'; did you mean fp16?"),
        ("[axes]\nmodel = ['opt-tiny']\ndtype = ['float32']", "`dtype` must be one of fp32, fp16, bf16, but got "
         "'float32'; for example dtype=fp32"),
        ("[[axes", "it must be TOML, but is not: Expected ']]' at the end of an array declaration"),
        ("a = \udcff".encode("utf-8", "surrogateescape"), "it must be UTF-8 text, but byte 4 is not; convert it"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_the_file_and_what_is_wrong(tmp_path, text, message) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=r".") as caught:
        matrix.load(path, "cpu")
    assert str(caught.value).startswith(f"mine.toml: {message}")
    assert "\n" not in str(caught.value)


def test_zo_bench_s_accuracies_have_the_precision_of_its_appendix() -> None:
    """C.2: half precision for ZO methods, mixed for what backpropagates, neither for Forward-Grad."""
    methods_of: dict[tuple[str, str], set[str]] = {}
    for cell in matrix.load(recipes.find("runners", "zo_bench_accuracy"), "cuda").cells:
        methods_of.setdefault((cell.dtype, cell.autocast), set()).add(cell.method)
    assert methods_of.pop(("fp32", "none")) == {"forward-grad"}
    assert methods_of.pop(("fp32", "fp16")) == {"fo-sgd", "fo-adam", "hybrid"}
    assert {key: "zo-sgd" in methods and "forward-grad" not in methods for key, methods in methods_of.items()} == {
        ("fp16", "none"): True
    }


def test_the_fastest_16_bit_type_is_whatever_the_machine_says(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.toml", '[axes]\nmodel = ["opt-tiny"]\ndtype = ["fp32", "fastest 16-bit"]\n')

    def dtypes(narrow: str | None, **changes: Any) -> list[str]:
        return [cell.dtype for cell in matrix.load(path, "cpu", changes, lambda: narrow).cells]

    assert dtypes("fp16") == ["fp32", "fp16"]
    assert dtypes(None) == ["fp32"]  # where fp32 is faster than both
    assert dtypes(None, dtype="bf16") == ["bf16"]


def test_a_cell_that_saves_must_save_where_its_steps_are_recorded(tmp_path: Path) -> None:
    path = written(
        tmp_path / "mine.toml",
        '[axes]\nmodel = ["opt-tiny"]\n[base]\nengine = "offload"\ncheckpoint = "async"\ncheckpoint_every = 4\n',
    )
    for steps, enough in ((8, 10), (5, 6), (11, 14)):
        with pytest.raises(ValueError, match=f"but got steps={steps}, checkpoint_every=4: .* use steps={enough}$"):
            matrix.load(path, "cpu", {"steps": steps})
        assert [cell.steps for cell in matrix.load(path, "cpu", {"steps": enough}).cells] == [enough]
    assert matrix.load(path, "cpu", {"steps": 8, "checkpoint": "none", "checkpoint_every": 0}).cells
