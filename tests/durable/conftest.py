"""The small task and model of the tests of fine-tuning."""

from tests.finetune.conftest import data_dir as data_dir
from tests.finetune.conftest import spec as spec
from tests.finetune.conftest import weights_path as weights_path
