import pytest
import torch

import surestep
from surestep.base.errors import TaskError
from surestep.engine.task.init_weights import as_init, summarize_names
from tests import tiny


def test_path_becomes_init_weights():
    assert as_init("a.pt") == surestep.InitWeights("a.pt")
    init = surestep.InitWeights("a.pt", skip=["head"])
    assert as_init(init) is init


def test_state_dict_is_named_by_its_kind():
    init = as_init({"w": torch.ones(1)})
    assert (init.name, init.typed) == ("the state dict", "state_dict")


@pytest.mark.parametrize(
    ("init", "sentence"),
    [(3, "init is a int. Give a path"), (torch.ones(1), "init is a Tensor")],
)
def test_invalid_weights_are_rejected(init, sentence):
    with pytest.raises(TaskError, match=sentence):
        tiny.task(init=init)


def test_skip_given_as_text_is_rejected():
    with pytest.raises(TaskError, match=r"Give a list: skip=\['head'\]"):
        surestep.InitWeights("a.pt", skip="head")


def test_long_list_of_names_is_summarized():
    assert summarize_names(["a", "b", "c"], 2) == "a, b and 1 more"
