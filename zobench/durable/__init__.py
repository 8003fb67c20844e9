"""Durable runs: snapshots of weights, the journal of all that was done to them, and going on from the two."""
