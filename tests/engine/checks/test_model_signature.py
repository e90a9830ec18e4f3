"""The signature of a model has what it takes and returns, by name."""

from typing import NamedTuple

import torch
from torch import nn

import surestep
from surestep.engine.batch import MicroBatch
from surestep.engine.checks.model_signature import describe_model_io
from surestep.record.io import read_json


def micro_batch(*args, **kwargs):
    return MicroBatch(args, kwargs, None, 4.0, 4, 0)


def entry(name, dtype, *shape):
    return {"name": name, "dtype": dtype, "shape": list(shape)}


class Model(nn.Module):
    def forward(self, ids, mask=None, scale=1.0):
        return ids


class Output(NamedTuple):
    logits: torch.Tensor
    loss: torch.Tensor | None


IDS, MASK = torch.zeros(4, 7, dtype=torch.int64), torch.zeros(4, 7, dtype=torch.bool)


def test_number_of_samples_is_free_in_each_shape():
    outputs = torch.zeros(4, 4, dtype=torch.bfloat16)
    found = describe_model_io(Model(), micro_batch(IDS), outputs)
    assert found == {
        "inputs": [entry("ids", "int64", -1, 7)],
        "outputs": [entry("output", "bfloat16", -1, 4)],
    }


def test_inputs_are_in_the_order_of_forward():
    found = describe_model_io(Model(), micro_batch(mask=MASK, ids=IDS), IDS)
    assert [each["name"] for each in found["inputs"]] == ["ids", "mask"]


def test_what_is_not_a_tensor_has_its_type():
    found = describe_model_io(Model(), micro_batch(IDS, None, 2.0), IDS)
    assert found["inputs"][1:] == [entry("scale", "python float")]


def test_members_of_nested_outputs_have_their_path_as_name():
    outputs = {"logits": IDS, "hidden": (IDS, [MASK]), "loss": None}
    found = describe_model_io(Model(), micro_batch(IDS), outputs)["outputs"]
    assert [each["name"] for each in found] == ["logits", "hidden.0", "hidden.1.0"]
    found = describe_model_io(Model(), micro_batch(IDS), (IDS, MASK))["outputs"]
    assert [each["name"] for each in found] == ["output.0", "output.1"]


def test_run_folder_has_the_signature_of_its_model(tmp_path):
    data = torch.randn(16, 4), torch.randint(0, 3, (16,))
    task = surestep.Task(nn.Linear(4, 3), "multiclass", data)
    config = surestep.Config(max_steps=1, batch_size=8, logging={"progress": "quiet"})
    surestep.Trainer(task, config, run=tmp_path).fit()
    assert read_json(tmp_path / "signature.json") == {
        "inputs": [entry("input", "float32", -1, 4)],
        "outputs": [entry("output", "float32", -1, 3)],
    }
