"""`resolve(Config, Facts, Given) -> Plan`."""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import fields

import torch

from surestep.base.errors import ConfigError
from surestep.base.written import COMMAND_LINE, flag, set_where
from surestep.config.config import Config
from surestep.config.not_set import NOT_SET, NotSet
from surestep.engine.parallel.deepspeed.config import keys_of
from surestep.engine.parallel.deepspeed.options import taken_over
from surestep.engine.plan.plan import Plan, PlanContext, ResolvedOption, TaskInfo
from surestep.engine.plan.system import SystemInfo
from surestep.engine.rules import REFUSALS, TABLE
from surestep.engine.rules.optim import own_options
from surestep.engine.rules.requirements import find_unmet
from surestep.engine.rules.run import DEFAULT_SEED
from surestep.engine.rules.schedule import make_schedule_spec


def resolve(
    config: Config, facts: SystemInfo, given: TaskInfo, *, origins: Mapping[str, str] | None = None
) -> Plan:
    """Decide every option by the table.

    Args:
        config: what was asked.
        facts: what this machine is.
        given: what the Task brings.
        origins: where each option was said ("command line", "run.toml"), by its full name.

    Raises:
        ConfigError: wishes that this machine or the other wishes do not allow: all that can be
            seen once those before them are left out.
    """
    config, origins = _with_deepspeeds(config, facts, origins or {})
    faults: list[str] = []
    asked, wrong = config, list[str]()
    while True:
        try:
            plan = _resolve(asked, facts, given, origins)
            break
        except _Refused as error:
            faults += [
                _with_places(text, config, origins)
                for text in str(error).splitlines()
                if not any(_mentions(text, name) for name in wrong)
            ]
            if error.option not in asked.set_options():
                break
            wrong.append(error.option)
            asked = asked.replace_options({error.option: NOT_SET})
    if faults:
        raise ConfigError("\n".join(faults)) from None
    return plan


class _Refused(ConfigError):
    """A refusal, with the option that it is of."""

    def __init__(self, text: str, option: str) -> None:
        super().__init__(text)
        self.option = option


def _with_deepspeeds(
    config: Config, facts: SystemInfo, origins: Mapping[str, str]
) -> tuple[Config, Mapping[str, str]]:
    """Return the Config with what a table of DeepSpeed sets and the Config does not."""
    said = config.set_options()
    if "parallel.deepspeed" not in said:
        return config, origins
    keys = keys_of(said["parallel.deepspeed"])
    taken = taken_over(keys, said, facts.launched.size)
    places = dict.fromkeys(taken, "parallel.deepspeed")
    return config.replace_options(taken, places), {**origins, **places}


def _mentions(text: str, option: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(option)}(?![\w.]*\w)", text) is not None


def _with_places(text: str, config: Config, origins: Mapping[str, str]) -> str:
    """Add to a message where each option in it was set."""
    lines = config.locations()
    places = {}
    for name in config.set_options():
        place = origins.get(name, "")
        if place.startswith("recipe "):  # which line of it
            place = lines.get(name, place)
        if _mentions(text, name):
            places[name] = flag(name) if place == COMMAND_LINE else place or lines.get(name, "")
    shown = ", ".join(f"{name}: {place}" for name, place in places.items() if place)
    return f"{text} ({shown})" if shown else text


def _resolve(
    config: Config, facts: SystemInfo, given: TaskInfo, origins: Mapping[str, str]
) -> Plan:
    """Decide every option, where all that is asked can be.

    Raises:
        _Refused: the first wish that cannot be kept.
    """
    where = defaultdict(lambda: "in Python", {n: set_where(p) for n, p in origins.items()})
    known = PlanContext(config, facts, given)
    decisions = []
    for option, rows in TABLE.items():
        _check(known, option)
        row = next((row for row in rows if row.condition(known)), None)
        if row is None:
            continue  # it does not apply here: an option of another optimizer
        known.chosen[option] = row.value(known)
        reason = row.reason.format(k=known, origin=where[option], origins=where)
        decisions.append(ResolvedOption(option, known.chosen[option], reason))
    fields_of_plan = {each.name for each in fields(Plan)}
    chosen = {option.replace(".", "_"): value for option, value in known.chosen.items()}
    return Plan(
        **{name: value for name, value in chosen.items() if name in fields_of_plan},
        optim_options=own_options(known.chosen),
        schedule=make_schedule_spec(known),
        average=known.averaging_spec(),
        decisions=tuple(decisions),
    )


def _check(known: PlanContext, option: str) -> None:
    """Raise every refusal of an option that holds.

    Raises:
        _Refused: some do.
    """
    unmet = find_unmet(known, option)
    if unmet is not None:  # the constraints below may rest on what is required
        raise _Refused(unmet, option)
    found: list[str] = []
    for refusal in REFUSALS.get(option, ()):
        try:
            if refusal.condition(known):
                found.append(refusal.message(known))
        except Exception:
            if not found:  # else it may rest on what was refused before it
                raise
    if found:
        raise _Refused("\n".join(found), option)


def resolve_device(config: Config, facts: SystemInfo) -> torch.device:
    """Return the device that the Plan will have; what is built before a Plan may use it.

    Raises:
        ConfigError: a device was said that cannot be had.
    """
    known = PlanContext(config, facts, TaskInfo(train_samples=None, in_memory=False))
    _check(known, "device")
    device: torch.device = next(row for row in TABLE["device"] if row.condition(known)).value(known)
    return device


def resolve_seed(config: Config) -> int:
    """Return the seed that the Plan will have; the model is built before there is a Plan."""
    return DEFAULT_SEED if isinstance(config.seed, NotSet) else config.seed
