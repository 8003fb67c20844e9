"""Turns stored results into tables beside the papers' values. Importing it loads neither torch nor pandas."""

from zobench.report.render import FORMATS, render
from zobench.report.table import Table, load_table

__all__ = ["FORMATS", "Table", "load_table", "render"]
