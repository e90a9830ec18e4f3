"""`resolve(Config, SystemInfo, TaskInfo) -> Plan`."""

import re
from collections.abc import Mapping
from functools import cache

import torch

from surestep.base.errors import ConfigError
from surestep.base.locations import COMMAND_LINE, flag
from surestep.config.config import Config, iter_options, option_info
from surestep.config.not_set import NOT_SET, NotSet
from surestep.engine.plan.context import PlanContext
from surestep.engine.plan.plan import Plan, ResolvedOption, TaskInfo
from surestep.engine.plan.system import SystemInfo
from surestep.engine.resolve import RESOLVERS
from surestep.engine.resolve.average import make_averaging_spec
from surestep.engine.resolve.optim import own_options
from surestep.engine.resolve.requirements import find_unmet
from surestep.engine.resolve.schedule import make_schedule_spec


def resolve(
    config: Config,
    system: SystemInfo,
    task_info: TaskInfo,
    *,
    origins: Mapping[str, str] | None = None,
) -> Plan:
    """Decide every option.

    Args:
        config: the options that are set.
        system: the machine.
        task_info: what the Task brings.
        origins: where each option was set ("command line", "run.toml"), by full name.

    Raises:
        ConfigError: options that this machine, the Task or other options do not allow; all that
            can be found when those before them are left out.
    """
    origins = origins or {}
    faults: list[str] = []
    rest, wrong = config, list[str]()
    while True:
        try:
            plan = _Resolver(rest, system, task_info, origins).plan()
            break
        except _Rejected as error:
            faults += [
                _with_places(text, config, origins)
                for text in str(error).splitlines()
                if not any(_mentions(text, name) for name in wrong)
            ]
            if error.option not in rest.set_options():
                break
            wrong.append(error.option)
            rest = rest.replace_options({error.option: NOT_SET})
    if faults:
        raise ConfigError("\n".join(faults)) from None
    return plan


class _Rejected(ConfigError):
    """What is wrong with an option."""

    def __init__(self, text: str, option: str) -> None:
        super().__init__(text)
        self.option = option


class _Resolver(PlanContext):
    """Decides each option once, when it is first asked for."""

    def plan(self) -> Plan:
        """Decide everything.

        Raises:
            _Rejected: an option cannot be used.
        """
        for option in plan_options():
            if option not in self.reasons:
                self.decide(option)
        schedule = make_schedule_spec(self)
        if self.rejections:
            raise _Rejected("\n".join(self.rejections), option="")
        reasons = [option for option in plan_options() if option in self.reasons]
        return Plan(
            tuple(ResolvedOption(name, self.chosen[name], self.reasons[name]) for name in reasons),
            optim_options=own_options(self),
            schedule=schedule,
            average=make_averaging_spec(self),
            task_info=self.task_info,
        )

    def decide(self, option: str) -> None:
        """Decide an option, after what it requires by its declaration.

        Raises:
            _Rejected: the option cannot be used.
        """
        unmet = find_unmet(self, option)
        if unmet is not None:  # the function may rely on what is required
            raise _Rejected(unmet, option)
        outer = self.option, self.rejections
        self.option, self.rejections = option, []
        try:
            info = option_info(option)
            own = RESOLVERS.get(option) or (info.resolve if info is not None else None)
            decision = (own or PlanContext.declared)(self)
        except Exception:
            if not self.rejections:  # otherwise it may follow from them
                raise
        finally:
            rejections = self.rejections
            self.option, self.rejections = outer
        if rejections:
            raise _Rejected("\n".join(rejections), option)
        if decision is not None:
            self.chosen[option], self.reasons[option] = decision


@cache
def plan_options() -> tuple[str, ...]:
    """List what a Plan decides: the options, and in each group the values that follow from them.

    The length of a run is `total_steps`, so `epochs` and `max_steps` are not listed.
    """
    names = [name for name, _ in iter_options() if name not in ("epochs", "max_steps")]
    names += [name for name in RESOLVERS if option_info(name) is None]
    groups = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    return tuple(sorted(names, key=lambda name: groups.index(name.rpartition(".")[0])))


def _mentions(text: str, option: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(option)}(?![\w.]*\w)", text) is not None


def _with_places(text: str, config: Config, origins: Mapping[str, str]) -> str:
    """Add to a message where each option in it was set."""
    lines = config.locations()
    places = {}
    for name in config.set_options():
        place = origins.get(name, "")
        if place.startswith("recipe "):  # the line of the recipe says more
            place = lines.get(name, place)
        if _mentions(text, name):
            places[name] = flag(name) if place == COMMAND_LINE else place or lines.get(name, "")
    shown = ", ".join(f"{name}: {place}" for name, place in places.items() if place)
    return f"{text} ({shown})" if shown else text


def resolve_device(config: Config, system: SystemInfo) -> torch.device:
    """Return the device that the Plan will have, for what is built before it.

    Raises:
        ConfigError: the device that is set is not available.
    """
    try:
        device: torch.device = _Resolver(config, system, TaskInfo(None, in_memory=False))["device"]
    except _Rejected as error:
        raise ConfigError(str(error)) from None
    return device


def resolve_seed(config: Config) -> int:
    """Return the seed that the Plan will have; the model is built before the Plan."""
    info = option_info("seed")
    assert info is not None
    return int(info.default[0]) if isinstance(config.seed, NotSet) else config.seed
