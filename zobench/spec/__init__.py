"""The spec of a run: everything that decides what one cell of a matrix computes. Knows nothing else."""

from zobench.spec.run import RunSpec as RunSpec
from zobench.spec.values import check_key as check_key
from zobench.spec.values import check_value as check_value
from zobench.spec.values import fields
from zobench.spec.values import parse_size as parse_size
from zobench.spec.values import parse_value as parse_value
from zobench.spec.values import size_text as size_text
from zobench.spec.words import BACKWARD as BACKWARD
from zobench.spec.words import CHOICES as CHOICES
from zobench.spec.words import FIRST_ORDER as FIRST_ORDER
from zobench.spec.words import SEQ_LEN as SEQ_LEN
from zobench.spec.words import SHIPPED as SHIPPED
from zobench.spec.words import SIZES as SIZES
from zobench.spec.words import STATEFUL as STATEFUL
from zobench.spec.words import SWITCHES as SWITCHES
from zobench.spec.words import suggestion as suggestion

FIELDS = fields()
"""Names of all fields of a spec, in order."""
