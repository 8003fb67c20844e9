"""Running cells: one RunSpec in a fresh process, and sweeps of many."""
