"""A subspace that was drawn before a stop is the one after it."""
