"""Uses the names of peft; tests/laws/test_law_2_lora.py uses peft itself."""

from types import SimpleNamespace

from torch import nn

from surestep.engine.model.load_weights import base_names, has_adapters
from tests import tiny


def tree(**parts):
    module = nn.Module()
    for name, part in parts.items():
        module.add_module(name, part)
    return module


def adapted(base):
    model = tree(base_model=tree(model=base))
    model.peft_config = SimpleNamespace()
    return model


def one():
    return nn.Linear(1, 1, bias=False)


def test_model_with_adapters_is_detected():
    assert has_adapters(adapted(one()))
    assert not has_adapters(tiny.model())


def test_base_weights_have_their_original_names_and_adapters_none():
    layer = tree(base_layer=one(), lora_A=nn.ModuleDict({"default": one()}))
    head = tree(original_module=one(), modules_to_save=nn.ModuleDict({"default": one()}))
    model = adapted(tree(model=tree(q=layer), head=head))
    start = "base_model.model."
    assert base_names(model) == {
        f"{start}model.q.base_layer.weight": "model.q.weight",
        f"{start}head.original_module.weight": "head.weight",
        f"{start}head.modules_to_save.default.weight": "head.weight",
    }


def test_model_without_adapters_has_unchanged_names():
    assert list(base_names(tree(model=one())).values()) == ["model.weight"]
