import pytest
import torch

import surestep
from surestep.base.errors import TaskError
from surestep.engine.task.init_weights import as_init, summarize_names
from tests import tiny


def test_a_path_is_an_init_without_more_to_say():
    assert as_init("a.pt") == surestep.InitWeights("a.pt")
    init = surestep.InitWeights("a.pt", skip=["head"])
    assert as_init(init) is init


def test_a_state_dict_has_no_path_to_be_called_by():
    init = as_init({"w": torch.ones(1)})
    assert (init.name, init.typed) == ("the state dict", "state_dict")


@pytest.mark.parametrize(
    ("init", "sentence"),
    [(3, "init is a int. Give a path"), (torch.ones(1), "init is a Tensor")],
)
def test_what_is_no_weights_is_refused(init, sentence):
    with pytest.raises(TaskError, match=sentence):
        tiny.task(init=init)


def test_a_skip_of_text_is_refused():
    with pytest.raises(TaskError, match=r"Give a list: skip=\['head'\]"):
        surestep.InitWeights("a.pt", skip="head")


def test_only_some_names_are_told():
    assert summarize_names(["a", "b", "c"], 2) == "a, b and 1 more"
