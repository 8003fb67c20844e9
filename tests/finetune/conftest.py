"""The small task and model of the tests of fine-tuning."""

from tests.support.commands import refused as refused
from tests.support.commands import zobench as zobench
from tests.support.small_task import data_dir as data_dir
from tests.support.small_task import spec as spec
from tests.support.small_task import weights_path as weights_path
