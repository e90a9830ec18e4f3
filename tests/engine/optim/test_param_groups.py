import pytest
import torch
from torch import nn

from surestep.base.errors import ConfigError, TaskError
from surestep.engine.model.compile import unwrap_compiled
from surestep.engine.optim.build import build_optimizer
from surestep.engine.optim.freezing import freeze_permanent
from surestep.engine.optim.param_groups import (
    make_param_groups,
    parameter_groups,
    wrapped_optimizers,
)
from tests import tiny


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh()),
        nn.Linear(8, 8),
        nn.Linear(8, 3),
    )


def groups_of(*groups_text, model=None, **optim):
    planned = tiny.plan(
        {"model": model or net()}, optim={"lr": 0.1, "groups": groups_text, **optim}
    )
    return {each.name: each for each in make_param_groups(planned.model, planned.plan)}


def by_parameter(groups, what):
    return {name: getattr(each, what) for each in groups.values() for name in each.parameters}


def test_default_is_a_decay_and_a_no_decay_group():
    groups = groups_of()
    assert [(each.name, each.lr, each.weight_decay) for each in groups.values()] == [
        ("decay", 0.1, 0.01),
        ("no decay", 0.1, 0.0),
    ]
    (decayed,) = parameter_groups([groups["decay"]])
    assert list(decayed) == ["params", "name", "weight_decay"]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("2", ["2.weight", "2.bias"]),
        ("2.*", ["2.weight", "2.bias"]),
        ("0.0", ["0.0.weight", "0.0.bias"]),
        ("[12].weight", ["1.weight", "2.weight"]),
        ("*.bias", ["0.0.bias", "0.1.bias", "1.bias", "2.bias"]),
        ("type:BatchNorm1d", ["0.1.weight", "0.1.bias"]),
        ("type:_BatchNorm", ["0.1.weight", "0.1.bias"]),
        ("type:BatchNorm*", ["0.1.weight", "0.1.bias"]),
    ],
)
def test_pattern_matches_parameters_modules_and_types(pattern, names):
    rates = by_parameter(groups_of(f"{pattern} lr=0.5"), "lr")
    assert {name for name, lr in rates.items() if lr == 0.5} == set(names)
    assert {lr for name, lr in rates.items() if name not in names} == {0.1}


def test_later_group_overrides_each_setting():
    groups = groups_of("0 lr=0.2 decay=0.3 freeze", "0.1 lr=0.4 freeze=no")
    assert by_parameter(groups, "lr")["0.1.weight"] == 0.4
    assert by_parameter(groups, "weight_decay")["0.1.weight"] == 0.3
    assert by_parameter(groups, "trained_from")["0.1.weight"] == 0
    assert by_parameter(groups, "trained_from")["0.0.weight"] is None


SETTINGS = {"lr": ("0.2", "0.4"), "decay": ("0.3", "0"), "freeze": ("2 steps", "no")}


@pytest.mark.parametrize("later", SETTINGS)
def test_later_group_keeps_the_settings_that_it_leaves_out(later):
    first = " ".join(f"{name}='{values[0]}'" for name, values in SETTINGS.items())
    groups = groups_of(f"0 {first}", f"0.0 {later}='{SETTINGS[later][1]}'")
    found = [by_parameter(groups, name)["0.0.weight"] for name in ("lr", "weight_decay")]
    found.append(by_parameter(groups, "trained_from")["0.0.weight"])
    before, after = (0.2, 0.3, 2), (0.4, 0.0, 0)
    assert found == [
        new if name == later else old
        for name, old, new in zip(SETTINGS, before, after, strict=True)
    ]


def test_lr_multiple_is_combined_with_layerwise_lr_decay():
    groups = groups_of("0 lr=0.5x", "2 lr=7", layerwise_lr_decay=0.5)
    rates = by_parameter(groups, "lr")
    assert rates["0.0.weight"] == 0.1 * (0.25 * 0.5)
    assert rates["1.weight"] == 0.1 * 0.5
    assert rates["2.weight"] == 7


def test_first_group_has_the_logged_learning_rate():
    groups = groups_of("0 lr=0.5x", "2 lr=7", "1.bias lr=3x")
    assert next(iter(groups.values())).lr == 0.1


def test_freeze_durations_are_converted_to_steps():
    starts = by_parameter(groups_of("0 freeze='1 epoch'", "1 freeze=5 steps"), "trained_from")
    assert (starts["0.0.weight"], starts["1.weight"], starts["2.weight"]) == (3, 5, 0)


def test_tied_weight_is_matched_by_each_of_its_names():
    model = nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 3))
    model[1].weight = model[0].weight
    assert by_parameter(groups_of("1 lr=0.5", model=model), "lr")["0.weight"] == 0.5


def test_compiled_model_is_matched_by_its_original_names():
    model = unwrap_compiled(torch.compile(net(), backend="eager"))
    assert by_parameter(groups_of("2.bias lr=0.5", model=model), "lr")["2.bias"] == 0.5


@pytest.mark.parametrize(
    ("groups_text", "sentence"),
    [
        (
            "3.* freeze",
            r"'3\.\*' matches no parameter or module of the model\. Known: 0, 1, 2\.",
        ),
        ("backbone freeze", r"'backbone' matches no parameter .* Known: 0, 1, 2\."),
        ("type:BatchNrm1d freeze", r"no type of module .* Did you mean 'type:BatchNorm1d'"),
        ("type:Tanh freeze", r"'type:Tanh' matches modules that have no parameters"),
        ("* freeze", "all parameters are frozen at the start"),
        ("* freeze=1 step", "all parameters are frozen at the start"),
    ],
)
def test_pattern_without_effect_is_rejected(groups_text, sentence):
    with pytest.raises(ConfigError, match=sentence):
        groups_of(groups_text)


@pytest.mark.parametrize("groups_text", ["0 lr=0.5", "0 decay=0", "0 freeze=1 step"])
def test_parameters_frozen_by_the_model_stay_frozen(groups_text):
    model = net()
    model[0].requires_grad_(False)
    with pytest.raises(ConfigError, match="all that '0' matches has requires_grad=False"):
        groups_of(groups_text, model=model)
    assert "0.0.weight" not in by_parameter(groups_of("0 freeze", model=model), "lr")


def test_freeze_longer_than_the_run_is_rejected():
    with pytest.raises(ConfigError, match="freezes longer than the run of 6 steps"):
        groups_of("0 freeze=9 epochs")


def test_weight_decay_for_an_optimizer_without_it_is_rejected():
    with pytest.raises(
        ConfigError, match=r"'0 decay=0\.5' sets a weight decay, and rprop has none"
    ):
        groups_of("0 decay=0.5", name="rprop")
    assert groups_of("0 decay=0", name="rprop")


def built(make, **optim):
    planned = tiny.plan({"optimizer": make, "model": net()}, optim=optim)
    groups = make_param_groups(planned.model, planned.plan)
    return build_optimizer(planned.plan, planned.task.optimizer, planned.model, groups)


def test_custom_optimizer_gets_groups_with_learning_rates():
    made = built(
        lambda groups: torch.optim.RMSprop(groups, lr=0.3),
        groups=["2 lr=7"],
        layerwise_lr_decay=0.5,
    )
    rates = {group["name"]: group["lr"] for group in made.param_groups}
    assert rates["layer 1, decay"] == 0.3 * 0.25
    assert rates["layer 2, no decay"] == 0.3 * 0.5
    assert rates["layer 3, 2, decay"] == 7


def test_multiples_apply_to_the_rates_that_a_custom_optimizer_gives_its_groups():
    def make(groups):
        rates = [0.1 * (number + 1) for number in range(len(groups))]
        named = [{**group, "lr": lr} for group, lr in zip(groups, rates, strict=True)]
        return torch.optim.SGD(named, lr=9.0)

    said = {"groups": ["0 freeze lr=3x", "2 lr=0.5x"]}
    planned = tiny.plan({"optimizer": make, "model": net()}, optim=said)
    groups = make_param_groups(planned.model, planned.plan)
    with freeze_permanent(planned.model, groups):
        made = build_optimizer(planned.plan, make, planned.model, groups)
    assert [(group["name"], group["lr"]) for group in made.param_groups] == [
        *(("decay", 0.1), ("no decay", 0.2)),
        *(("2, decay", 0.5 * (0.1 * 3)), ("2, no decay", 0.2)),
    ]


def test_custom_optimizer_that_drops_the_groups_is_rejected():
    def make(groups):
        return torch.optim.SGD([p for group in groups for p in group["params"]], lr=0.1)

    with pytest.raises(
        TaskError, match="lacks the group 'layer 2, decay', which has a learning rate"
    ):
        built(make, layerwise_lr_decay=0.5)
    assert built(make)


class Wrapper(torch.optim.SGD):
    """An optimizer that holds another one, and itself."""

    def __init__(self, inner):
        super().__init__([torch.zeros(1, requires_grad=True)], lr=0.1)
        self.inner, self.itself = inner, self


def test_wrapped_optimizers_are_found_once_at_any_depth():
    last = torch.optim.Adam([torch.zeros(1, requires_grad=True)])
    middle = Wrapper(last)
    assert wrapped_optimizers(Wrapper(middle)) == {"inner": middle, "inner.inner": last}
    assert wrapped_optimizers(last) == {}
