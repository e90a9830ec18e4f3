"""Matching tensors to parameters: prefixes, submodules, tied weights, mismatches."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from surestep.base.errors import CheckpointError
from surestep.engine.model.load_weights import load_matching_weights
from surestep.engine.task.init_weights import InitWeights


class Net(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
        self.head = nn.Linear(5, classes)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6, 4)
        self.out = nn.Linear(4, 6, bias=False)
        self.out.weight = self.table.weight


def weights(seed=1, **options):
    torch.manual_seed(seed)
    return {name: value.clone() for name, value in Net(**options).state_dict().items()}


def start(model, tensors, **said):
    return load_matching_weights(model, tensors, InitWeights(tensors, **said))


def assert_loaded(model, tensors):
    own = model.state_dict()
    assert all(torch.equal(own[name], value) for name, value in tensors.items())


@pytest.mark.parametrize(
    "prefix", ["", "module.", "_orig_mod.", "model.", "module._orig_mod.", "model.module."]
)
def test_prefixes_of_wrappers_are_stripped(prefix):
    model, tensors = Net(), weights()
    started = start(model, {f"{prefix}{name}": value for name, value in tensors.items()})
    assert_loaded(model, tensors)
    assert (started.missing, started.unexpected) == ([], [])
    assert started.prefix == prefix.removesuffix("_orig_mod.")  # stripped anywhere
    assert started.loaded == list(tensors)


def test_weights_of_a_compiled_module_load():
    model, tensors = Net(), weights()
    start(model, {name.replace("body.", "body._orig_mod."): v for name, v in tensors.items()})
    assert_loaded(model, tensors)


def test_submodule_called_model_is_not_a_prefix():
    outer = nn.Module()
    outer.model = Net()
    tensors = {f"model.{name}": value for name, value in weights().items()}
    assert start(outer, tensors).prefix == ""
    assert_loaded(outer, tensors)


def test_prefix_and_into_load_one_submodule():
    model, tensors = Net(), weights()
    there = {name.replace("body.", "encoder."): value for name, value in tensors.items()}
    started = start(model, there, prefix="encoder", into="body")
    assert_loaded(model.body, {n.removeprefix("body."): tensors[n] for n in tensors if "body" in n})
    assert started.missing == ["head.weight", "head.bias"]
    assert started.unexpected == ["head.weight", "head.bias"]


def test_skipped_weights_are_missing_and_unexpected():
    model, tensors = Net(classes=2), weights()
    before = model.head.weight.clone()
    started = start(model, tensors, skip=["head"])
    assert torch.equal(model.head.weight, before)
    assert_loaded(model, {name: value for name, value in tensors.items() if "body" in name})
    assert (started.missing, started.unexpected) == (["head.weight", "head.bias"],) * 2


@pytest.mark.parametrize("skipped", ["head", "head.", "head.weight"])
def test_skipped_name_is_a_whole_module_or_tensor(skipped):
    model = nn.ModuleDict({name: nn.Linear(2, 2) for name in ("head", "header", "my_head")})
    tensors = {name: torch.full_like(value, 3) for name, value in model.state_dict().items()}
    missing = ["head.weight"] if skipped == "head.weight" else ["head.weight", "head.bias"]
    assert start(model, tensors, skip=[skipped]).missing == missing


def test_skip_accepts_wildcards():
    started = start(Net(), {n: v for n, v in weights().items() if "bias" not in n}, skip=["*.bias"])
    assert started.missing == ["body.0.bias", "body.1.bias", "head.bias"]


def test_tied_weights_load_from_either_name():
    model, table = Tied(), torch.rand(6, 4)
    for names in (["table.weight"], ["out.weight"], ["table.weight", "out.weight"]):
        started = start(model, dict.fromkeys(names, table))
        assert started.loaded == ["table.weight", "out.weight"]
        assert torch.equal(model.out.weight, table)
    with pytest.raises(CheckpointError, match=r"differ in .* skip=\['table.weight'\]"):
        start(model, {"table.weight": table, "out.weight": table + 1})


def test_dtypes_are_converted_and_reported():
    model = Net()
    halves = {n: v.bfloat16() if v.is_floating_point() else v for n, v in weights().items()}
    started = start(model, halves)
    assert model.head.weight.dtype == torch.float32
    assert started.converted == {"torch.bfloat16 -> torch.float32": 8}
    assert ("loaded with another type", 8, "torch.bfloat16 -> torch.float32") in started.rows()


def test_report_counts_loaded_missing_and_unexpected_weights():
    model, tensors = Net(classes=2), weights()
    started = start(model, {f"module.{name}": v for name, v in tensors.items()}, skip=["head"])
    assert [row[:2] for row in started.rows()] == [
        *(("loaded", 7), ("missing, left as they are", 2)),
        *(("unexpected, left out", 2), ("without their prefix", 7)),
    ]
    assert started.sentence() == (
        "Starting from the state dict: 7 loaded; 2 missing (head.weight, head.bias); 2 unexpected "
        "(module.head.weight, module.head.bias)"
    )


BASE = {"body.0.weight": torch.zeros(5, 4)}


@pytest.mark.parametrize(
    ("change", "said", "sentence"),
    [
        (lambda t: t.pop("head.bias"), {}, r"lacks head.bias. .* skip=\['head'\]"),
        (
            lambda t: t.update(x=torch.ones(1)),
            {},
            r"has x, which the model does not have.* skip=\['x'\]",
        ),
        (lambda t: t.update(weights(classes=9)), {}, r"head.weight is \(9, 5\) there but \(3, 5\)"),
        (lambda t: t.update({"head.bias": torch.ones(3).int()}), {}, "torch.int32 there but"),
        (lambda t: t.clear(), {}, "Nothing in the state dict matches"),
        (lambda t: None, {"prefix": "encoder"}, "Nothing in the state dict matches"),
        (lambda t: None, {"into": "bodi"}, "names no part of the model. Did you mean 'body'"),
        (lambda t: None, {"skip": ["haed"]}, r"skip=\['haed'\].* matches no name .* 'head'"),
        (lambda t: None, {"skip": ["body", "head"]}, "Nothing in the state dict matches"),
    ],
)
def test_mismatch_is_rejected_and_nothing_is_loaded(change, said, sentence):
    model, tensors = Net(), weights()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    change(tensors)
    with pytest.raises(CheckpointError, match=sentence):
        start(model, tensors, **said)
    assert_loaded(model, before)


def test_base_model_of_a_model_with_adapters_is_loaded():
    """Uses the names of peft; tests/laws/test_law_2_lora.py uses peft itself."""
    inner = nn.Module()
    inner.q = nn.Module()
    inner.q.base_layer = nn.Linear(2, 2)
    inner.q.lora_A = nn.ModuleDict({"default": nn.Linear(2, 1, bias=False)})
    model = nn.Module()
    model.base_model = nn.Module()
    model.base_model.model = inner
    model.peft_config = SimpleNamespace()
    tensors = {"q.weight": torch.ones(2, 2), "q.bias": torch.ones(2)}
    started = start(model, tensors)
    assert torch.equal(inner.q.base_layer.weight, torch.ones(2, 2))
    assert started.missing == ["base_model.model.q.lora_A.default.weight"]
