"""The store of results: one JSON file per run, written atomically, read back forgivingly, asked, merged, compared."""

from zobench.store.files import BusyError as BusyError
from zobench.store.files import NoLocksError as NoLocksError
from zobench.store.files import Store as Store
from zobench.store.files import StoreError as StoreError
from zobench.store.files import first_sweep as first_sweep
from zobench.store.files import frame as frame
from zobench.store.files import is_current as is_current
from zobench.store.files import machine_of as machine_of
from zobench.store.files import metrics as metrics
from zobench.store.files import opened as opened
from zobench.store.files import place_of as place_of
from zobench.store.files import printable as printable
from zobench.store.files import text_of as text_of
from zobench.store.files import without_place as without_place
