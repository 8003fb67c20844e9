"""The reliability campaign: kills, failing disks and fuzzed inputs, each held against a run that nobody disturbed.

``python -m tests.reliability --help``; what was tried and what came of it is in docs/reliability.md.
"""
