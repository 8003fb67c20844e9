"""The selftest: whether zobench is right and fast on a device that nobody has tried, in minutes, on one page."""
