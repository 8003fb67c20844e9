"""Durable runs: snapshots of weights, the journal of all that was done to them, and resuming from the two."""
