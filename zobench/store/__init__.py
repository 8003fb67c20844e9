"""The store of results: one JSON file per run, written atomically, read back forgivingly, asked, merged, compared."""

from zobench.store.files import (
    COLUMNS,
    LOCK,
    PAPER,
    BusyError,
    Store,
    StoreError,
    first_sweep,
    frame,
    is_current,
    machine_of,
    metrics,
    place_of,
    printable,
    row,
    text_of,
    without_place,
)

__all__ = [
    "COLUMNS",
    "LOCK",
    "PAPER",
    "BusyError",
    "Store",
    "StoreError",
    "first_sweep",
    "frame",
    "is_current",
    "machine_of",
    "metrics",
    "place_of",
    "printable",
    "row",
    "text_of",
    "without_place",
]
