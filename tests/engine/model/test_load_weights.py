"""Which tensors of a file are loaded, what they become, and what the report says."""

import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import CheckpointError
from surestep.engine.model.load_weights import load_matching_weights


class Net(nn.Module):
    """A body, and a head that may share the body's weight."""

    def __init__(self, *, tied=False, dtype=torch.float32):
        super().__init__()
        self.body, self.head = nn.Linear(2, 2), nn.Linear(2, 2, bias=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        if tied:
            self.head.weight = self.body.weight
        self.to(dtype)


def tensors_of(dtype=torch.float32, prefix="", **more):
    torch.manual_seed(5)
    names = {"body.weight": (2, 2), "body.bias": (2,), "head.weight": (2, 2)}
    found = {name: torch.randn(size, dtype=torch.float64).to(dtype) for name, size in names.items()}
    found["seen"] = torch.tensor(3)
    return {f"{prefix}{name}": value for name, value in {**found, **more}.items()}


def load(model, tensors, **options):
    return load_matching_weights(model, tensors, surestep.InitWeights("a.pt", **options))


@pytest.mark.parametrize("there", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("here", [torch.float64, torch.float32, torch.bfloat16])
def test_values_are_converted_once_to_the_dtype_of_the_model(there, here):
    model, tensors = Net(dtype=here), tensors_of(there)
    report = load(model, tensors)
    for name, value in model.state_dict().items():
        assert torch.equal(value, tensors[name].to(value.dtype))
    assert report.converted == ({} if here is there else {f"{there} -> {here}": 3})
    assert (report.prefix, report.loaded) == ("", [*model.state_dict()])
    assert report.missing == report.unexpected == []


@pytest.mark.parametrize(
    ("there", "prefix"),
    [
        ("", ""),
        ("module.", "module."),
        ("module._orig_mod.", "module."),  # that of torch.compile is removed anywhere
        ("model.module.", "model.module."),
    ],
)
def test_prefix_of_wrappers_is_the_one_with_which_most_names_match(there, prefix):
    tensors = {**tensors_of(prefix=there), "model.module.other": torch.ones(1)}
    report = load(Net(), tensors, skip=["model.module.other"])
    assert (report.prefix, len(report.loaded)) == (prefix, 4)


@pytest.mark.parametrize(
    ("skip", "loaded", "unexpected"),
    [
        (["head"], ["seen", "body.weight", "body.bias"], ["head.weight", "old.head"]),
        (["head.*", "old*"], ["seen", "body.weight", "body.bias"], ["head.weight", "old.head"]),
        (["bod"], None, None),
    ],
)
def test_skipped_names_are_those_and_what_is_in_them(skip, loaded, unexpected):
    model, tensors = Net(), tensors_of(**{"old.head": torch.ones(1)})
    before = model.head.weight.clone()
    if loaded is None:
        with pytest.raises(CheckpointError, match="matches no name"):
            load(model, tensors, skip=skip)
        return
    report = load(model, tensors, skip=[*skip, "old"])
    assert (report.loaded, report.missing, report.unexpected) == (
        loaded,
        ["head.weight"],
        unexpected,
    )
    assert torch.equal(model.head.weight, before)


@pytest.mark.parametrize("missing", ["head.weight", "body.weight"])
def test_tied_weight_is_loaded_by_either_of_its_names(missing):
    model, tensors = Net(tied=True), tensors_of()
    value = tensors.pop(missing)
    report = load(model, tensors)
    assert (len(report.loaded), report.missing) == (4, [])
    assert not torch.equal(model.head.weight, value)
    assert torch.equal(
        model.head.weight, tensors["head.weight" if "body" in missing else "body.weight"]
    )
    with pytest.raises(CheckpointError, match="and here they are one tensor"):
        load(model, {**tensors, missing: value})
    tensors[missing] = model.head.weight.detach().clone()
    assert load(model, tensors).missing == []


def test_part_of_the_model_takes_a_file_of_that_part():
    model = nn.ModuleDict({"a": Net(), "b": Net()})
    before, tensors = model["b"].body.weight.clone(), tensors_of()
    report = load(model, tensors, into="a")
    assert report.loaded == [f"a.{name}" for name in Net().state_dict()]
    assert report.missing == [f"b.{name}" for name in Net().state_dict()]
    assert torch.equal(model["a"].body.weight, tensors["body.weight"])
    assert torch.equal(model["b"].body.weight, before)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("body.bias", torch.ones(3), r"body.bias is \(3,\) there but \(2,\) here"),
        ("body.bias", torch.ones(2).long(), "body.bias is torch.int64 there but torch.float32"),
        ("seen", torch.tensor(1.0), "seen is torch.float32 there but torch.int64 here"),
        ("body.bias", torch.ones(2, dtype=torch.cfloat), "is torch.complex64 there"),
        ("extra", torch.ones(2), "a.pt has extra, which the model does not have"),
        ("body.bias", None, "a.pt lacks body.bias"),
    ],
)
def test_nothing_is_loaded_from_a_file_that_does_not_fit(name, value, sentence):
    model, tensors = Net(), tensors_of()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    tensors = {key: tensor for key, tensor in tensors.items() if key != name}
    with pytest.raises(CheckpointError, match=sentence):
        load(model, tensors if value is None else {**tensors, name: value})
    assert all(torch.equal(model.state_dict()[key], tensor) for key, tensor in before.items())
