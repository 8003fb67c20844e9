"""One pass over the model: its forward on a copy of the batch per point, to losses and scores."""
