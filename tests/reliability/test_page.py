"""docs/reliability.md says what the logs say, and these say what was promised."""

from tests.reliability import faults, page
from tests.reliability.log import Log


def test_the_page_shows_the_logs() -> None:
    """Mend with ``python -m tests.reliability summary``."""
    text = page.PAGE.read_text()
    assert page.renewed(text) == text


def test_a_thousand_kills_have_lost_nothing_and_changed_nothing() -> None:
    log = Log(page.LOGS / "kills.jsonl")
    kills, ends = log.of("kill"), log.of("end")
    assert len(kills) >= 1000
    assert not [line for line in (*kills, *ends) if line["lost"] or line["differs"]]
    assert {(line["work"], line["chain"]) for line in kills} <= {(line["work"], line["chain"]) for line in ends}


def test_a_hundred_thousand_inputs_had_no_findings() -> None:
    batches = Log(page.LOGS / "fuzz.jsonl").of("batch")
    assert sum(batch["count"] for batch in batches) >= 100_000
    assert not [batch for batch in batches if batch["kinds"]]


def test_every_fault_was_tried_and_did_no_harm() -> None:
    log = Log(page.LOGS / "faults.jsonl")
    assert {line["fault"] for line in log.of("done")} == {*faults.FAULTS, "soak"}
    assert {line["part"] for line in log.of("fault")} == {*faults.FAULTS, "soak"}
    assert not [line for line in log.of("fault") if line["harm"] or "not run" in line["outcome"]]
