"""Imports submitit, which starts jobs in Slurm or in the background, or says how to install it."""

from __future__ import annotations

from typing import Any


def submitit_or_remedy() -> Any:
    """The module ``submitit``. Raises ``ImportError`` with the remedy where it is not installed."""
    try:
        import submitit
    except ImportError:
        raise ImportError(
            "submitting a sweep needs submitit, but it is not installed; pip install 'zobench[cluster]'"
        ) from None
    return submitit
