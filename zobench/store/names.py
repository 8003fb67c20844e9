"""What stored models are called: one name may stand for several, of other configurations or weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from zobench.result import Result
from zobench.runspec import RunSpec

_DIGITS = 4


def distinct_names(results: Iterable[Result]) -> Mapping[str, str]:
    """The hash of each run, to its model's name; where another model among ``results`` has that name too, with the
    first digits of its weights' fingerprint, or else of its configuration's: ``mine@8aa7``."""
    specs = [result.spec for result in results]
    kinds: dict[tuple[str, str], set[str]] = {}
    for spec in specs:
        for what in ("config_hash", "weights_hash"):  # random weights have no fingerprint, and are of any
            kinds.setdefault((spec.model.casefold(), what), set()).update(filter(None, [spec.value(what)]))
    ambiguous = {name for (name, _), hashes in kinds.items() if len(hashes) > 1}
    return {spec.hash: _tagged(spec) if spec.model.casefold() in ambiguous else spec.model for spec in specs}


def _tagged(spec: RunSpec) -> str:
    return f"{spec.model}@{(spec.weights_hash or spec.config_hash)[:_DIGITS]}"
