"""docs/reliability.md says what the logs say, and these say what was promised."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()


def logged(name: str, kind: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (ROOT / "results" / "reliability" / f"{name}.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def test_a_thousand_kills_have_lost_nothing_and_changed_nothing() -> None:
    kills, ends = logged("kills", "kill"), logged("kills", "end")
    assert not [line for line in (*kills, *ends) if line["lost"] or line["differs"]]
    assert {(line["work"], line["chain"]) for line in kills} <= {(line["work"], line["chain"]) for line in ends}
    assert f"{len(kills)} kills in {len(ends)} runs; lost: 0; different: 0." in PAGE
    assert len(kills) >= 1000


def test_a_hundred_thousand_inputs_had_no_findings() -> None:
    batches = logged("fuzz", "batch")
    assert not [batch for batch in batches if batch["kinds"]]
    ends = [sum(batch[key] for batch in batches) for key in ("count", "accepted", "refused", "unreadable")]
    assert f"| all | {' | '.join(f'{end:,}' for end in ends)} | 0 |" in PAGE
    assert ends[0] >= 100_000


def test_every_fault_was_tried_and_did_no_harm() -> None:
    tries = logged("faults", "fault")
    assert not [line for line in tries if line["harm"] or "not run" in line["outcome"]]
    assert f"{len(tries):,} tries; harm in 0 of them." in PAGE
    assert all(f"| {fault} |" in PAGE for fault in {line["fault"] for line in tries})
