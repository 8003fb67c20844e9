"""The report as one self-contained HTML page."""

from zobench.report.html.page import write

__all__ = ["write"]
