"""The measuring of what a run costs: sampler, memory, timers, statistics, the machine's identity and its ceilings.

Nothing is re-exported here: the sampler runs in a small process of its own, and importing this package must stay light.
"""
