"""The version of zobench, which results and packages carry."""

__version__ = "0.2.0"
