"""The token batches of a run, as a list."""

import itertools

from zobench import models
from zobench.data.batch import stream


def batches_of(spec, count):
    config = models.build_config(spec.model)
    return list(itertools.islice(stream(spec, config.vocab_size, config.pad_token_id), count))
