"""The reliability campaign: kills, fuzzed inputs and faults, each held against a run that nobody disturbed.

``python -m tests.reliability --help``; what was run and what came of it is in docs/reliability.md.
"""
