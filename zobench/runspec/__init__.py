"""The spec of a run: everything that decides what one cell of a matrix computes. Knows nothing else."""

from zobench.runspec.run import RunSpec as RunSpec
from zobench.runspec.values import check_key as check_key
from zobench.runspec.values import check_value as check_value
from zobench.runspec.values import fields
from zobench.runspec.values import parse_size as parse_size
from zobench.runspec.values import parse_value as parse_value
from zobench.runspec.values import size_text as size_text
from zobench.runspec.words import BACKWARD as BACKWARD
from zobench.runspec.words import CHOICES as CHOICES
from zobench.runspec.words import FIRST_ORDER as FIRST_ORDER
from zobench.runspec.words import SEQ_LEN as SEQ_LEN
from zobench.runspec.words import SHIPPED as SHIPPED
from zobench.runspec.words import SIZES as SIZES
from zobench.runspec.words import STATEFUL as STATEFUL
from zobench.runspec.words import SWITCHES as SWITCHES
from zobench.runspec.words import suggestion as suggestion

FIELDS = fields()
"""Names of all fields of a spec, in order."""
