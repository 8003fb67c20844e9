"""The statistics of every interval, test and verdict: scipy's where it has them, the rest by hand, all in one place."""

LEVEL = 0.05
"""The level of every interval and test: an interval covers with a probability of 1 - LEVEL."""
