import inspect
import warnings

import pytest
import torch
from torch import nn

import surestep
from surestep.base.warn import warn
from tests import tiny


def test_warning_names_the_calling_line():
    with pytest.warns(UserWarning, match="look") as caught:
        warn("look")
    line = inspect.currentframe().f_lineno - 1
    assert (caught[0].filename, caught[0].lineno) == (__file__, line)


def test_warning_of_a_run_names_the_line_that_started_it(tmp_path):
    model = tiny.model()
    with torch.no_grad():
        model[-1].weight.mul_(100)  # the first loss is far above log(classes)
    task = tiny.task(model=model)
    config = surestep.Config(epochs=1, batch_size=10)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = surestep.Trainer(task, config, run=tmp_path / "r")
        trainer.fit()
    found = [each for each in caught if "The first loss is" in str(each.message)]
    assert [each.filename for each in found] == [__file__]


def test_warning_in_a_forward_names_the_line_that_called_the_module():
    class Warns(nn.Module):
        def forward(self, x):
            warn("within")
            return x

    with pytest.warns(UserWarning, match="within") as caught:
        Warns()(torch.zeros(1))
    assert caught[0].filename == __file__
