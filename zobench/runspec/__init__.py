"""The spec of a run: everything that decides what one cell of a matrix computes. Knows nothing else."""

from zobench.runspec.fields import SpecField as SpecField
from zobench.runspec.numeric import parse_size as parse_size
from zobench.runspec.numeric import size_text as size_text
from zobench.runspec.options import flat as flat
from zobench.runspec.registries import METHODS as METHODS
from zobench.runspec.registries import SCHEMES as SCHEMES
from zobench.runspec.registries import scheme_of as scheme_of
from zobench.runspec.run import DECLARED as DECLARED
from zobench.runspec.run import RunSpec as RunSpec
from zobench.runspec.run import check_effect as check_effect
from zobench.runspec.run import declared_options as declared_options
from zobench.runspec.run import provenance as provenance
from zobench.runspec.values import CHOICES as CHOICES
from zobench.runspec.values import FIELDS as FIELDS
from zobench.runspec.values import INCIDENTAL as INCIDENTAL
from zobench.runspec.values import check_key as check_key
from zobench.runspec.values import check_value as check_value
from zobench.runspec.values import distinct as distinct
from zobench.runspec.values import labels as labels
from zobench.runspec.values import named as named
from zobench.runspec.values import parse_value as parse_value
from zobench.runspec.values import value_in as value_in
from zobench.runspec.words import SEQ_LEN as SEQ_LEN
from zobench.runspec.words import suggestion as suggestion
