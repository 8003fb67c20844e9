"""What several test modules use: references, builders, stand-ins, and the programs that tests start."""
