"""Models: which are known by name, their sizes, how to build them empty, and the values that they start with."""

from zobench.models.build import DTYPES as DTYPES
from zobench.models.build import blocks as blocks
from zobench.models.build import build as build
from zobench.models.build import build_config as build_config
from zobench.models.build import is_masked as is_masked
from zobench.models.families import Architecture as Architecture
from zobench.models.families import Family as Family
from zobench.models.registry import ARCHITECTURES as ARCHITECTURES
from zobench.models.registry import get as get
from zobench.models.sizes import block_parameter_count as block_parameter_count
from zobench.models.sizes import largest_linear as largest_linear
from zobench.models.sizes import largest_resident as largest_resident
from zobench.models.sizes import parameter_count as parameter_count
from zobench.models.sizes import resident_parameter_count as resident_parameter_count
from zobench.models.variants import check as check
from zobench.models.variants import checked as checked
from zobench.models.variants import differences as differences
from zobench.models.variants import position_count as position_count
from zobench.models.variants import variant as variant
from zobench.runspec.registries import MODELS as MODELS
