"""Parameter groups: which parameters are trained together, with or without decay."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from surestep.base.errors import ConfigError, TaskError
from surestep.config.duration import parse_duration
from surestep.config.param_groups import parse_param_group
from surestep.engine.model.layers import layers_of
from surestep.engine.model.param_patterns import match_params, plain_name
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import trainable_parameters
from surestep.engine.task.task import ParameterGroups

# Decay pulls towards zero, which is no natural value for a scale, a shift or a table row that is
# seldom looked up. Source: https://arxiv.org/abs/1711.05101, https://arxiv.org/abs/2003.02436
WITHOUT_DECAY = (
    nn.modules.batchnorm._NormBase,  # batch and instance normalisation, synchronised or lazy
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.Embedding,
    nn.EmbeddingBag,
)


def no_decay_params(model: nn.Module) -> set[int]:
    """Return the ids of the parameters that weight decay leaves alone.

    Those of normalisation and embedding modules, by their type, and everything with fewer than two
    dimensions elsewhere: biases, scales, gates. A weight shared with an embedding is one of its.
    """
    kept = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, WITHOUT_DECAY)
        for parameter in module.parameters(recurse=False)
    }
    return kept | {id(parameter) for parameter in model.parameters() if parameter.dim() < 2}


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that are trained alike.

    Attributes:
        name: the layer, the patterns that decided, and whether they decay.
        parameters: by name.
        multiple: of `optim.lr`; None where a rate was said, which stands alone.
        lr: the peak rate; None where the Task's optimizer knows it.
        weight_decay: None where the Task's optimizer knows it.
        trained_from: optimizer steps taken before they are trained; None is never.
    """

    name: str
    parameters: dict[str, nn.Parameter]
    multiple: float | None
    lr: float | None
    weight_decay: float | None
    trained_from: int | None

    def for_torch(self) -> dict[str, Any]:
        """Return it as torch's optimizers take it; what is not said they decide."""
        options: dict[str, Any] = {}
        if self.lr is not None and self.multiple != 1:
            options["lr"] = self.lr
        if self.weight_decay is not None:
            options["weight_decay"] = self.weight_decay
        return {"params": list(self.parameters.values()), "name": self.name, **options}


class _ParamSettings(NamedTuple):
    """What the groups of the Config say of one parameter; of each setting the later one holds."""

    lr: float | str | None = None
    weight_decay: float | None = None
    freeze: bool | str | None = None
    by: tuple[str, ...] = ()


class _Key(NamedTuple):
    """What parameters of one group have in common; None where it is the same for all."""

    said: _ParamSettings
    decays: bool | None
    layer: int | None


def make_param_groups(model: nn.Module, plan: Plan) -> tuple[ParameterGroup, ...]:
    """Put each trained parameter in a group, by rate, decay, layer and freezing.

    Raises:
        ConfigError: a pattern matches nothing, or nothing that is trained; or all is frozen.
    """
    trained = trainable_parameters(model)
    said, kept = _said(model, plan, trained), no_decay_params(model)
    layers = layers_of(model) if plan.optim_layerwise_lr_decay not in (None, 1) else ()
    layer_of = {id(each): layer.index for layer in layers for each in layer.parameters}
    groups: dict[_Key, dict[str, nn.Parameter]] = {}
    for name, parameter in trained.items():
        own, number = said[id(parameter)], id(parameter)
        key = _Key(own, number not in kept, layer_of.get(number))
        if own.freeze is True:
            key = _Key(own, None, None)
        elif own.weight_decay is not None:
            key = key._replace(decays=None)
        groups.setdefault(key, {})[plain_name(name)] = parameter
    found = [_group(plan, key, groups[key], len(layers)) for key in groups]
    arranged = tuple(sorted(found, key=_order))
    if arranged and not any(group.trained_from == 0 for group in arranged):
        raise ConfigError(
            "optim.groups: all parameters are frozen at the start, so nothing would be trained. "
            "Leave a part out of them, such as the head: 'head.* freeze=no' as the last group."
        )
    return arranged


def _order(group: ParameterGroup) -> tuple[bool, float, bool]:
    """Put first what has optim.lr or the nearest to it: the first group's rate is logged."""
    distance = math.inf if group.multiple is None else abs(math.log(group.multiple))
    return group.trained_from is None, distance, group.weight_decay == 0


def _said(
    model: nn.Module, plan: Plan, trained: Mapping[str, nn.Parameter]
) -> dict[int, _ParamSettings]:
    """Return what is said of each trained parameter, by id."""
    said = {id(each): _ParamSettings() for each in trained.values()}
    for text in plan.optim_groups:
        group = parse_param_group(text)
        found = match_params(group.pattern, model) & said.keys()
        is_kept = group.freeze is True and group.lr is None and group.weight_decay is None
        if not found and not is_kept:
            raise ConfigError(
                f"optim.groups: all that {group.pattern!r} matches has requires_grad=False, and "
                "stays as it is. Leave the group out, or set requires_grad_(True) on it."
            )
        for each in found:
            before = said[each]
            said[each] = _ParamSettings(
                before.lr if group.lr is None else group.lr,
                before.weight_decay if group.weight_decay is None else group.weight_decay,
                before.freeze if group.freeze is None else group.freeze,
                (*before.by, group.pattern),
            )
    return said


def _group(
    plan: Plan, key: _Key, parameters: dict[str, nn.Parameter], n_layers: int
) -> ParameterGroup:
    said, multiple = key.said, 1.0
    if key.layer is not None and plan.optim_layerwise_lr_decay is not None:
        multiple = plan.optim_layerwise_lr_decay ** (n_layers - key.layer)
    if isinstance(said.lr, str):
        multiple *= float(said.lr.removesuffix("x"))
    lr = None if plan.optim_lr is None else plan.optim_lr * multiple
    decay = {True: plan.optim_weight_decay, False: 0.0, None: said.weight_decay}[key.decays]
    words = [
        f"layer {key.layer}" if key.layer is not None else "",
        *said.by,
        {True: "decay", False: "no decay", None: ""}[key.decays],
    ]
    return ParameterGroup(
        name=", ".join(word for word in words if word),
        parameters=parameters,
        multiple=None if isinstance(said.lr, float) else multiple,
        lr=said.lr if isinstance(said.lr, float) else lr,
        weight_decay=decay,
        trained_from=unfreeze_step(said.freeze, plan),
    )


def unfreeze_step(freeze: bool | str | None, plan: Plan) -> int | None:
    """Return how many steps are taken before something is trained; None is never."""
    if isinstance(freeze, str):
        return parse_duration(freeze).in_steps(plan.steps_per_epoch)
    return None if freeze else 0


def parameter_groups(groups: Iterable[ParameterGroup]) -> ParameterGroups:
    """Return the groups that are ever trained, as torch's optimizers take them.

    Raises:
        TaskError: there are none.
    """
    found = [group.for_torch() for group in groups if group.trained_from is not None]
    if not found:
        raise TaskError(
            "No parameter of the model is trained: all have requires_grad=False, or there are "
            "none. Set requires_grad_(True) on the part that should learn."
        )
    return found


def scale_rates(optimizer: torch.optim.Optimizer, groups: Iterable[ParameterGroup]) -> None:
    """Multiply the rates of an optimizer of the user's own by the groups' multiples.

    Raises:
        TaskError: the optimizer does not have the groups.
    """
    made = {group.get("name"): group for group in optimizer.param_groups}
    for group in groups:
        if group.trained_from is None or group.multiple == 1:
            continue
        if group.name not in made:
            raise TaskError(
                f"The optimizer of Task(optimizer=...) lacks the group {group.name!r}, whose rate "
                "is said. Hand the groups on as they come: lambda groups: SGD(groups, lr=0.1)."
            )
        if group.multiple is not None:
            made[group.name]["lr"] *= group.multiple


def check_groups(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Check that each trained parameter is in one group and that no frozen one is in any.

    Raises:
        TaskError: with the names of those that are not.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TaskError(
            f"Task(optimizer=...) returned a {type(optimizer).__name__}, not a "
            "torch.optim.Optimizer."
        )
    held = [id(parameter) for parameter in parameters_of(optimizer)]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    trained = trainable_parameters(model)
    missing = [name for name, each in trained.items() if id(each) not in held]
    twice = [name for name, each in trained.items() if held.count(id(each)) > 1]
    trained_ids = {id(each) for each in trained.values()}
    foreign = [names.get(each, "a tensor that is not the model's") for each in held]
    foreign = [name for name, each in zip(foreign, held, strict=True) if each not in trained_ids]
    for found, what, mend in (
        (missing, "in no group of the optimizer and would never be trained", "Add them"),
        (twice, "in two groups of the optimizer and would be moved twice", "Keep one"),
        (foreign, "frozen or foreign, and in the optimizer all the same", "Leave them out"),
    ):
        if found:
            raise TaskError(f"These parameters are {what}: {_some(found)}. {mend}.")


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yield the parameters that an optimizer holds."""
    for group in optimizer.param_groups:
        yield from group["params"]


def _some(names: list[str], limit: int = 8) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
