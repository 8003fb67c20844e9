"""Benchmarks that take minutes run only where somebody asks for this folder: ``pytest tests/benchmarks -s``."""

import pytest


def pytest_collection_modifyitems(config, items):
    if not any("benchmarks" in str(argument) for argument in config.args):
        for item in items:
            if "benchmarks" in item.path.parts and item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="takes minutes: run pytest tests/benchmarks -s"))
