"""The papers' programs on a virtual clock: errors against the papers' own values, which the page states."""

import json
import statistics
from pathlib import Path

import pytest

from tests.support.tables import published
from tools import constants, validation
from tools.validation import Spread
from zobench import RunSpec, models
from zobench.cost import gpu, hardware, local
from zobench.cost.published import PaperCell, PaperProgram, evidence
from zobench.cost.published.memory import device_bytes
from zobench.cost.seconds import ran, rates_of
from zobench.cost.simulation import LARGE_ROUND, MIDDLE_SEGMENT, SMALL_SEGMENT, Allocator

MIB = 1 << 20


@pytest.fixture(scope="module")
def memory():
    return validation.memory_errors()


def test_the_committed_constants_give_the_page_and_the_ranges_that_are_committed(memory):
    page = validation.PAGE.read_text(encoding="utf-8")
    written = page.partition(validation.BEGIN)[2].partition(validation.END)[0]
    assert written == validation.page()
    assert validation.ERRORS.read_text(encoding="utf-8") == validation.ranges()


def test_held_out_errors_of_an_a100_are_within_the_bounds(memory):
    seconds = Spread.of(validation.throughput_errors("A100-80GB"))
    assert seconds.count == 155
    assert (seconds.median <= 0.04, seconds.p90 <= 0.14) == (True, True), seconds
    nbytes = Spread.of(validation.held_out(memory))
    assert nbytes.count == 56
    assert (nbytes.median <= 0.01, nbytes.p90 <= 0.05) == (True, True), nbytes


def test_an_h20_with_two_anchors_is_within_its_bound_and_without_them_is_not():
    anchored, alone = (Spread.of(validation.throughput_errors("H20-96GB", anchored=known)) for known in (True, False))
    assert (anchored.count, alone.count) == (246, 248)
    assert anchored.median <= 0.025 < alone.median


def test_a_group_of_ranks_explains_distzo2s_memory(memory):
    """The replay of one rank alone was 20 % low; one value gives what each group adds, and the others follow."""
    several = [error for error in memory if error.table == ("distzo2", "table1") and error.row["gpus"] != "1"]
    spread = Spread.of(several)
    assert spread.count == 20  # 21 values, less the fitted one
    assert (spread.median <= 0.08, abs(spread.bias) <= 0.03) == (True, True), spread


def test_the_page_says_what_zo_benchs_program_takes():
    """MeZO's program replayed in float32: rows for each answer, at lengths of MultiRC and SST-2."""
    page, program = validation.PAGE.read_text(encoding="utf-8"), PaperProgram(driver_bytes=0)
    for name, rows, tokens, place in (
        ("OPT-13B", 4, 400, "{:.1f} GB with 4 rows of 400"), ("OPT-13B", 8, 432, "{:.1f} GB with 8 of 432"),
        ("OPT-13B", 8, 784, "{:.1f} GB with 8 of 784"), ("OPT-1.3B", 32, 64, "longest, takes {:.1f} GB"),
    ):  # fmt: skip
        cell = PaperCell(program=program, model=models.get(name), offloaded=False, batch=rows, seq=tokens)
        assert place.format(device_bytes(cell) / 2**30) in page
    a100 = hardware.load("a100-80gb-sxm")
    for method, tokens, rows, text in (
        ("zo-sgd", 400, 4, "{:.2f} s at 4"), ("zo-sgd", 432, 8, "{:.1f} s at 8"),
        ("zo-sgd-cons", 432, 8, "Cons ({:.1f} s"), ("forward-grad", 432, 8, "Grad ({:.1f}; 16.7)"),
        ("zo-adam", 432, 8, "ZO-Adam ({:.1f}; 11.5)"), ("fo-sgd", 432, 8, "below ({:.1f}; 19.1"),
    ):  # fmt: skip
        spec = RunSpec(model="OPT-13B", engine="resident", method=method, batch_size=rows, seq_len=tokens)
        assert text.format(gpu.predict(spec.resolve("cuda:0"), a100).step_seconds) in " ".join(page.split())


def test_mezo_is_slower_in_the_later_results_as_its_machine_is():
    """137 tokens/s and 95: each as its own machine's rates say, so that no change of the program is behind it."""
    root, medians = Path(__file__).parents[2] / "results" / "published", {}
    for machine, digest in (("epyc-2c-fcab62", "353dd85201a1"), ("epyc-2c-2ca1ff", "c65395e41597")):
        files = [json.loads(file.read_text()) for file in (root / machine).glob(f"OPT-125M-resident-fp32-{digest}*")]
        steps = statistics.median(statistics.median(run["samples"]["step_seconds"]) for run in files)
        (result,) = [run for run in published() if (run.environment.machine, run.spec.hash) == (machine, digest)]
        rates = rates_of(result)
        assert rates is not None
        medians[machine] = steps, local.predict(ran(result), rates).step_seconds
    measured, predicted = (late / early for early, late in zip(*medians.values(), strict=True))
    assert measured == pytest.approx(1.44, abs=0.02)
    assert predicted == pytest.approx(measured, rel=0.06)


def test_every_dash_of_the_papers_is_predicted_out_of_memory_and_no_other_cell():
    cells = validation.out_of_memory()
    assert sum(row["status"] == "oom" for row, _ in cells) == 14
    assert [row for row, is_oom in cells if is_oom != (row["status"] == "oom")] == []


def test_no_held_out_value_is_a_fitted_one():
    rows = [row for _, _, row in constants.measured(*evidence.FITTED)]
    fitted = {(row["model"], row["method"], row["dtype"], row["value"]) for row in rows}
    for error in validation.throughput_errors("A100-80GB"):
        row = error.row
        plain = not (row["autocast"] or row["wire_dtype"] or row["switch"])
        usual = plain and (row["batch_size"], row["seq_len"]) == ("1", "2048")
        assert not (usual and (row["model"], row["method"], row["dtype"], row["value"]) in fitted), row


def test_every_contradiction_names_values_that_are_there():
    known = [*validation.throughput_errors("A100-80GB"), *validation.throughput_errors("H20-96GB")]
    for contradiction in evidence.CONTRADICTIONS:
        assert any(contradiction.holds(error.row) for error in known), contradiction


def test_the_fit_gives_the_committed_constants_again():
    committed = hardware.load("a100-80gb-sxm")
    again = constants.changed(committed, {**constants.fit(), "malloc_us": constants.malloc()})
    for key in (*constants.PRIOR, "malloc_us"):
        name = key.removesuffix("_us").removesuffix("_gbs")
        assert getattr(again, name) == pytest.approx(getattr(committed, name), rel=1e-3), key


def test_segments_have_the_sizes_of_pytorchs():
    allocator = Allocator()
    small = allocator.allocate(1)
    assert allocator.reserved == SMALL_SEGMENT
    allocator.allocate(MIB)  # the rest of that segment serves it
    assert allocator.reserved == SMALL_SEGMENT
    middle = allocator.allocate(2 * MIB)
    assert allocator.reserved == SMALL_SEGMENT + MIDDLE_SEGMENT
    allocator.allocate(11 * MIB, stream=1)  # streams share nothing
    assert allocator.reserved == SMALL_SEGMENT + MIDDLE_SEGMENT + 12 * MIB
    allocator.release(small, middle)
    again = allocator.allocate(20 * MIB)
    assert (again.size, allocator.reserved) == (20 * MIB, SMALL_SEGMENT + MIDDLE_SEGMENT + 12 * MIB)
    assert LARGE_ROUND == 2 * MIB
