"""A sweep from Python or from a command: a store and this machine, and the plans and runs that they are made for."""
