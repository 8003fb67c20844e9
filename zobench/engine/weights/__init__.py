"""Units of weights: how a model is cut into them, where they rest, in which format, and how they are saved."""
