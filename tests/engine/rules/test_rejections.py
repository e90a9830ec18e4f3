import pytest

from surestep.base.errors import ConfigError
from tests.tiny import GPU, LOADED, decide


@pytest.mark.parametrize(
    "said", [{"batch_size": 10}, {"data.shuffle": False}, {"data.num_workers": 3}]
)
def test_options_that_a_loader_also_sets_are_accepted(said):
    assert decide(said, given=LOADED).batch_size == 10


@pytest.mark.parametrize("said", ["validation.every", "validation.batch_size", "validation.mode"])
def test_validation_without_data_is_rejected(said):
    value = {"validation.every": "1 epoch", "validation.batch_size": 3, "validation.mode": "max"}
    with pytest.raises(ConfigError, match="val"):
        decide({said: value[said]})


def test_device_index_must_exist():
    assert decide({"device": "cuda:0"}, GPU).device.index == 0
    with pytest.raises(ConfigError, match="This machine has: cpu, cuda:0"):
        decide({"device": "cuda:1"}, GPU)
