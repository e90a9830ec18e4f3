"""The parameters of the functions of torch that rules see."""

from inspect import Parameter, Signature

import pytest
import torch

from surestep.doctor.watch.functions import read_parameters

SELF = Signature([Parameter("self", Parameter.POSITIONAL_ONLY)])


class Method:
    """A function that is not written in Python, with the signature of Tensor.item in torch 2.15."""

    __signature__ = SELF

    def __call__(self, tensor):
        return tensor


@pytest.fixture(autouse=True)
def _read_again():
    read_parameters.cache_clear()
    yield
    read_parameters.cache_clear()


def test_parameters_of_a_cpp_function_do_not_depend_on_its_signature(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "item", Method(), raising=False)
    found = list(read_parameters("item"))
    monkeypatch.undo()
    assert found == ["input", "other"]
