"""Parameter groups: which parameters are trained together, with or without weight decay."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import nn

from surestep.base.errors import ConfigError, TaskError, suggest_names
from surestep.config.duration import parse_duration
from surestep.config.param_groups import parse_param_group
from surestep.engine.model.layers import layers_of
from surestep.engine.model.parametrized import made_shapes, own_parameters
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import trainable_parameters
from surestep.engine.task.init_weights import summarize_names
from surestep.engine.task.task import ParameterGroups

# Decay pulls towards zero, an arbitrary value for a scale, a shift or a table row that is seldom
# looked up. Source: https://arxiv.org/abs/1711.05101, https://arxiv.org/abs/2003.02436
WITHOUT_DECAY = (
    nn.modules.batchnorm._NormBase,  # batch and instance normalization, synchronized or lazy
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.Embedding,
    nn.EmbeddingBag,
)


def no_decay_params(model: nn.Module) -> set[int]:
    """Return the ids of the parameters without weight decay.

    Those of normalization and embedding modules, by their type, the biases of attention, and
    everything with fewer than two dimensions elsewhere: biases, scales, gates. A weight shared with
    an embedding is one of its. A parameter that makes a tensor of a module has the dimensions of
    that tensor.
    """
    of_modules: set[int] = set()
    for module in model.modules():
        if isinstance(module, WITHOUT_DECAY):
            of_modules |= set(map(id, own_parameters(module)))
        if isinstance(module, nn.MultiheadAttention):
            of_modules |= set(map(id, own_parameters(module, "bias_k", "bias_v")))
    shapes = made_shapes(model)
    return of_modules | {
        id(parameter)
        for parameter in model.parameters()
        if (len(shapes[id(parameter)]) if id(parameter) in shapes else parameter.dim()) < 2
    }


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters with the same options.

    Attributes:
        name: the layer, the patterns that decided, and whether they decay.
        parameters: by name.
        multiple: of `optim.lr`; None if the group sets a learning rate.
        lr: the peak rate; None if the Task's optimizer knows it.
        weight_decay: None if the Task's optimizer knows it.
        trained_from: optimizer steps taken before they are trained; None is never.
    """

    name: str
    parameters: dict[str, nn.Parameter]
    multiple: float | None
    lr: float | None
    weight_decay: float | None
    trained_from: int | None


class _Settings(NamedTuple):
    """What `optim.groups` sets for one parameter, and the patterns that did; the last one wins."""

    lr: float | str | None = None
    weight_decay: float | None = None
    freeze: bool | str | None = None
    patterns: tuple[str, ...] = ()


class _Key(NamedTuple):
    """What the parameters of one group have in common."""

    settings: _Settings
    decays: bool | None
    layer: int | None


def make_param_groups(model: nn.Module, plan: Plan) -> tuple[ParameterGroup, ...]:
    """Put each trained parameter in a group, by rate, decay, layer and freezing.

    Raises:
        ConfigError: a pattern matches nothing that is trained, or all is frozen.
    """
    trained = trainable_parameters(model)
    settings, no_decay = _settings(model, plan, trained), no_decay_params(model)
    layers = layers_of(model) if plan.optim_layerwise_lr_decay not in (None, 1) else ()
    layer_of = {id(weight): layer.index for layer in layers for weight in layer.parameters}
    members: dict[_Key, dict[str, nn.Parameter]] = {}
    for name, parameter in trained.items():
        own, number = settings[id(parameter)], id(parameter)
        if own.freeze is True:
            key = _Key(own, None, None)
        else:
            decays = number not in no_decay if own.weight_decay is None else None
            key = _Key(own, decays, layer_of.get(number))
        members.setdefault(key, {})[name] = parameter
    groups = [_group(plan, key, parameters, len(layers)) for key, parameters in members.items()]
    if groups and not any(group.trained_from == 0 for group in groups):
        raise ConfigError(
            "optim.groups: all parameters are frozen at the start, so nothing would be trained. "
            "Leave a part out of them, such as the head: 'head.* freeze=no' as the last group."
        )
    return tuple(sorted(groups, key=_order))


def _order(group: ParameterGroup) -> tuple[bool, float, bool]:
    """Put first the rate that is nearest to optim.lr: that of the first group is logged."""
    distance = math.inf if group.multiple is None else abs(math.log(group.multiple))
    return group.trained_from is None, distance, group.weight_decay == 0


def _settings(
    model: nn.Module, plan: Plan, trained: Mapping[str, nn.Parameter]
) -> dict[int, _Settings]:
    """Return the settings of each trained parameter, by id."""
    settings = {id(parameter): _Settings() for parameter in trained.values()}
    for text in plan.optim_groups:
        group = parse_param_group(text)
        matches = match_params(group.pattern, model) & settings.keys()
        only_freezes = group.freeze is True and group.lr is None and group.weight_decay is None
        if not matches and not only_freezes:
            raise ConfigError(
                f"optim.groups: all that {group.pattern!r} matches has requires_grad=False, and "
                "stays as it is. Leave the group out, or set requires_grad_(True) on it."
            )
        for number in matches:
            before = settings[number]
            settings[number] = _Settings(
                before.lr if group.lr is None else group.lr,
                before.weight_decay if group.weight_decay is None else group.weight_decay,
                before.freeze if group.freeze is None else group.freeze,
                (*before.patterns, group.pattern),
            )
    return settings


def match_params(pattern: str, model: nn.Module) -> set[int]:
    """Return the ids of the parameters and buffers that a pattern matches.

    A module's name matches everything in it, and each name of a shared tensor matches it. A type
    is matched by its name and those of its base classes.

    Raises:
        ConfigError: the pattern matches nothing.
    """
    by_type = pattern.startswith("type:")
    known = _ids_by_type(model) if by_type else _ids_by_name(model)
    matches = [ids for name, ids in known.items() if fnmatchcase(name, pattern)]
    found = set[int]().union(*matches)
    if found:
        return found
    if matches:
        raise ConfigError(
            f"optim.groups: {pattern!r} matches modules that have no parameters. Leave it out."
        )
    names = [name for name, ids in known.items() if ids]
    # A large model has thousands of names: without a similar one, list its top modules.
    close = get_close_matches(pattern, names, n=3) or [name for name in names if "." not in name]
    what = "type of module" if by_type else "parameter or module"
    raise ConfigError(
        f"optim.groups: {pattern!r} matches no {what} of the model. {suggest_names(pattern, close)}"
    )


def _ids_by_type(model: nn.Module) -> dict[str, set[int]]:
    known: dict[str, set[int]] = {}
    for module in model.modules():
        ids = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
        kinds = type(module).__mro__
        for kind in kinds[: kinds.index(nn.Module)]:
            known.setdefault(f"type:{kind.__name__}", set()).update(ids)
    return known


def _ids_by_name(model: nn.Module) -> dict[str, set[int]]:
    """Return the tensors by their names, and by those of the modules around them."""
    known: dict[str, set[int]] = {}
    for name, tensor in (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ):
        for part in accumulate(name.split("."), "{}.{}".format):
            known.setdefault(part, set()).add(id(tensor))
    return known


def _group(
    plan: Plan, key: _Key, parameters: dict[str, nn.Parameter], n_layers: int
) -> ParameterGroup:
    settings, multiple = key.settings, 1.0
    if key.layer is not None and plan.optim_layerwise_lr_decay is not None:
        multiple = plan.optim_layerwise_lr_decay ** (n_layers - key.layer)
    if isinstance(settings.lr, str):
        multiple *= float(settings.lr.removesuffix("x"))
    lr = None if plan.optim_lr is None else plan.optim_lr * multiple
    words = [
        f"layer {key.layer}" if key.layer is not None else "",
        *settings.patterns,
        {True: "decay", False: "no decay", None: ""}[key.decays],
    ]
    decays = {True: plan.optim_weight_decay, False: 0.0, None: settings.weight_decay}
    return ParameterGroup(
        name=", ".join(word for word in words if word),
        parameters=parameters,
        multiple=None if isinstance(settings.lr, float) else multiple,
        lr=settings.lr if isinstance(settings.lr, float) else lr,
        weight_decay=decays[key.decays],
        trained_from=unfreeze_step(settings.freeze, plan),
    )


def unfreeze_step(freeze: bool | str | None, plan: Plan) -> int | None:
    """Return how many steps are taken before training starts; None is never."""
    if isinstance(freeze, str):
        return parse_duration(freeze).in_steps(plan.steps_per_epoch)
    return None if freeze else 0


def parameter_groups(groups: Iterable[ParameterGroup]) -> ParameterGroups:
    """Return the groups that are ever trained, as torch's optimizers take them.

    The optimizers decide what is not set.

    Raises:
        TaskError: there are none.
    """
    trained: ParameterGroups = []
    for group in groups:
        if group.trained_from is None:
            continue
        options: dict[str, Any] = {
            "params": list(group.parameters.values()),
            "name": group.name,
        }
        if group.lr is not None and group.multiple != 1:
            options["lr"] = group.lr
        if group.weight_decay is not None:
            options["weight_decay"] = group.weight_decay
        trained.append(options)
    if not trained:
        raise TaskError(
            "No parameter of the model is trained: all have requires_grad=False, or there are "
            "none. Set requires_grad_(True) on the part that should learn."
        )
    return trained


def scale_rates(optimizer: torch.optim.Optimizer, groups: Iterable[ParameterGroup]) -> None:
    """Multiply the rates of a custom optimizer by the groups' multiples.

    An optimizer may have split a group in several, which have its name.

    Raises:
        TaskError: the optimizer does not have the groups.
    """
    by_name: dict[Any, list[dict[str, Any]]] = {}
    for own in optimizer.param_groups:
        by_name.setdefault(own.get("name"), []).append(own)
    for group in groups:
        if group.trained_from is None or group.multiple == 1:
            continue
        if group.name not in by_name:
            raise TaskError(
                f"The optimizer of Task(optimizer=...) lacks the group {group.name!r}, which has a "
                "learning rate. Pass the groups on: lambda groups: SGD(groups, lr=0.1)."
            )
        for own in by_name[group.name] if group.multiple is not None else ():
            own["lr"] *= group.multiple


def check_groups(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Check that each trained parameter is in one group and that no frozen one is in any.

    Raises:
        TaskError: with the names of those that are not.
    """
    uses = Counter(id(parameter) for parameter in parameters_of(optimizer))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    trained = {id(parameter): name for name, parameter in trainable_parameters(model).items()}
    missing = [name for key, name in trained.items() if not uses[key]]
    twice = [name for key, name in trained.items() if uses[key] > 1]
    foreign = [
        names.get(key, "a tensor that is not the model's") for key in uses if key not in trained
    ]
    for wrong, what, mend in (
        (missing, "in no group of the optimizer and would never be trained", "Add them"),
        (twice, "in two groups of the optimizer and would be updated twice", "Keep one"),
        (foreign, "frozen or not part of the model, but in the optimizer", "Leave them out"),
    ):
        if wrong:
            raise TaskError(f"These parameters are {what}: {summarize_names(wrong)}. {mend}.")


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yield the parameters of an optimizer."""
    for group in optimizer.param_groups:
        yield from group["params"]


def wrapped_optimizers(optimizer: torch.optim.Optimizer) -> dict[str, torch.optim.Optimizer]:
    """Return the optimizers that one holds in its attributes and steps itself, by attribute.

    Lookahead and sharpness-aware minimization are often written so.
    """
    found: dict[str, torch.optim.Optimizer] = {}
    outer = {"": optimizer}
    while outer:
        inner = {
            f"{path}{name}": value
            for path, one in outer.items()
            for name, value in vars(one).items()
            if isinstance(value, torch.optim.Optimizer)
            and not any(value is known for known in (optimizer, *found.values()))
        }
        found |= inner
        outer = {f"{path}.": one for path, one in inner.items()}
    return found
