"""Files of tables: one of no paper has rows of its own, and a mistake is one line that names the file."""

import re
from pathlib import Path

import pytest

from tests.support.files import written
from tests.support.tables import PAPER, TINY, result, rows, table_from
from zobench.recipes.reference import COLUMNS, Reference
from zobench.report import Table, render

OWN = """
title = "Own"
caption = "No paper."
baseline = "first"
columns = [
  { header = "M1", where = { model = "M1" } },
  { header = "M2", where = { model = "M2" } },
]
metrics = [
  { name = "throughput", header = "Throughput (tokens/s)", format = ".0f", better = "higher" },
  { name = "update_survival", header = "Update kept (%)", format = ".1f", better = "higher" },
]
[where]
seq_len = 100
[rows]
header = "Variant"
[[rows.variants]]
header = "first"
where = { engine = "resident" }
[[rows.variants]]
header = "second"
where = { engine = "offload", queries = [1, 4] }
"""


def test_a_table_of_no_paper_has_rows_of_its_own_and_ratios_to_one_of_them(tmp_path: Path) -> None:
    table = table_from(tmp_path, OWN)
    results = [result("M1"), result("M1", "offload", seconds=2.0, survival=0.123, queries=4)]
    text = render(table, results, "markdown", reference=PAPER)
    assert text.count("### Own") == 1
    assert "| Variant | M1 |\n" in text  # M2 was never run
    assert "| first | 100 |" in text
    assert re.search(r"\| second \| 50.0 \(x0.50\)(<sup>1</sup>)? \|", text)
    assert "(x) is the ratio to first in the same column." in text
    assert "| second | 12.3 |" in text
    assert "Measured with queries 4; the heading means 1." in text
    assert "— means that it was not asked for (survival=true)." in text
    assert "| Variant | M1 |\n" in render(table, [], "markdown", reference=PAPER)
    both = render(table, [*results, result("M2", seconds=0.5)], "markdown", reference=PAPER)
    assert "| first | 100 | 200 |" in both
    assert {row["source"] for row in rows(render(table, results, "csv", reference=PAPER))} == {"measured"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "Tiny"', 'titel = "Tiny"', "unknown key 'titel' in the table; did you mean title?"),
        ('title = "Tiny"', "", "`title` must be given in the table, but is missing"),
        ("seq_len = 100", '"options.rank" = 2', "of whole fields, but got options.rank; write options = { rank"),
        ("seq_len = 100", 'seq_len = "100"', "`seq_len` must be of type int, but got '100'"),
        ('method = "mezo"', 'methot = "mezo"',
         "unknown key 'methot' in `reference` of [[columns]]; did you mean method"),
        ('artifact = "t1"', "", "`paper` and `artifact` must be given both or neither, but one is missing; add it"),
        ('header = "A"', 'header = "A"\nquantity = "offload_rate"',
         "`quantity` must have the units of gpu_memory, MB, GB, but offload_rate of column 'A' has 1e9"),
        ('format = ".0f"', 'format = ".0q"', "`format` must be a number format, but got '.0q'; for example .0f"),
        ("[where]", "[where", "Expected"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_file_is_one_line_that_names_it(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in TINY
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        table_from(tmp_path, TINY.replace(old, new, 1))
    assert str(caught.value).startswith("tiny.toml: ")
    assert "\n" not in str(caught.value)


def test_an_ambiguous_paper_value_is_an_error(tiny: Table) -> None:
    twice = Reference((PAPER.rows[0], PAPER.rows[0]))
    with pytest.raises(ValueError, match=r"one paper value must match, but 2 match paper=p, .*; narrow `reference`"):
        render(tiny, [], "markdown", reference=twice)


HEADER, ROW = ",".join(COLUMNS), ",".join(PAPER.rows[0][name] for name in COLUMNS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2", r"the header of reference\.csv must be paper,artifact,.*but got \['a', 'b'\]"),
        (
            f"{HEADER}\n{ROW}\np,t1",
            r"line 3 of reference\.csv must have 20 columns, as the header has, but has more or",
        ),
        (f"{HEADER}\n{ROW},x", r"line 2 of reference\.csv must have 20 columns, as the header has, but has more or"),
        (
            f"{HEADER}\np,t,m,mezo,gpu_memory,MB,many" + "," * 13,
            "`value` must be a number or empty, but line 2 of .*many",
        ),
        (f"{HEADER}\np,t,m,mezo,gpu_memory,MB,1,,,,,,1.5" + "," * 7, "`batch_size` must be a number or .* has '1.5'"),
    ],
)
def test_a_reference_file_of_another_kind_is_refused(tmp_path, monkeypatch, text: str, message: str) -> None:
    written(tmp_path / "paper" / "reference.csv", f"{text}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        Reference.load()
