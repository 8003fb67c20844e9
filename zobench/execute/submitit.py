"""The library that hands jobs to Slurm or to the local pool, or the remedy where it is not installed."""

from __future__ import annotations

from typing import Any


def submitit_or_remedy() -> Any:
    """The module. Raises ``ImportError`` with the remedy where it is not installed."""
    try:
        import submitit
    except ImportError:
        raise ImportError(
            "submitting a sweep needs submitit, but it is not installed; pip install 'zobench[cluster]'"
        ) from None
    return submitit
