"""Notes of a sheet: numbered in reading order, and warnings that differ only in numbers said once."""

from zobench.report.formats import terminal
from zobench.report.sheet import CellText, ColumnGroup, Sheet, number


def sheet(*entries: CellText) -> Sheet:
    columns = tuple(CellText(text=f"c{k}", tone="label") for k in range(len(entries)))
    group = ColumnGroup(header=CellText(text="g", tone="label"), columns=columns, body=(entries,))
    return Sheet(
        label="l", title="t", source="s", row_header="r", rows=(CellText(text="row", tone="label"),), groups=(group,),
        remarks=(),
    )  # fmt: skip


def lost(g: str, ulp: str) -> str:
    return f"Warning: bf16 updates are lost: lr * g = {g} is below {ulp}"


def test_warnings_that_differ_in_numbers_alone_are_one_note_with_the_range_of_each_number() -> None:
    same = CellText(text="1", shared=(lost("6.6e-08", "7.8e-05"), "Measured with seq_len 512."))
    other = CellText(text="2", shared=(lost("1.2e-09", "7.8e-05"), "Measured with seq_len 256."))
    numbered = number(sheet(same, other))
    assert numbered.notes == (
        "Warning: bf16 updates are lost: lr * g = 1.2e-09 to 6.6e-08 is below 7.8e-05",  # at the group's heading
        "Measured with seq_len 512.", "Measured with seq_len 256.",  # conditions of their own are never merged
    )  # fmt: skip
    assert [group.header.marks for group in numbered.groups] == [(1,)]
    assert [column.marks for column in numbered.groups[0].columns] == [(2,), (3,)]


def test_a_terminal_has_at_most_four_notes_warnings_before_others_and_no_mark_without_its_note() -> None:
    notes = ["One.", "Two.", "Three.", "Warning: 4 pages", "Five.", "Six."]
    entries = [CellText(text=f"{i}0", notes=(note,)) for i, note in enumerate(notes)]
    text = terminal.write([number(sheet(*entries))], 200, color=False)
    lines = text.splitlines()
    assert [line for line in lines if line and line[0] in "¹²³⁴⁵⁶"] == [
        "¹ One.",
        "² Two.",
        "³ Three.",
        "⁴ Warning: 4 pages",
    ]
    assert "2 more notes: --format markdown has all." in lines
    row = next(line for line in lines if line.startswith(" row"))
    assert row.split() == ["row", "00¹", "10²", "20³", "30⁴", "40", "50"]
