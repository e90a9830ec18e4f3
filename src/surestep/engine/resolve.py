"""`resolve(Config, Facts, Given) -> Plan`."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import fields

import torch

from surestep.base.config import Config
from surestep.base.errors import ConfigError
from surestep.base.not_set import NotSet
from surestep.engine.facts import Facts
from surestep.engine.plan import Decision, Given, Known, Plan
from surestep.engine.schedule.decide import shape_of
from surestep.engine.table import REFUSALS, TABLE
from surestep.engine.table.optim import own_options
from surestep.engine.table.run import DEFAULT_SEED


def resolve(
    config: Config, facts: Facts, given: Given, *, origins: Mapping[str, str] | None = None
) -> Plan:
    """Decide every option by the table.

    Args:
        config: what was asked.
        facts: what this machine is.
        given: what the Task brings.
        origins: where each option was said ("command line", "run.toml"), by its full name.

    Raises:
        ConfigError: a wish that this machine or the other wishes do not allow.
    """
    said = defaultdict(lambda: "Python", origins or {})
    known = Known(config, facts, given)
    decisions = []
    for option, rows in TABLE.items():
        _check(known, option)
        row = next((row for row in rows if row.when(known)), None)
        if row is None:
            continue  # it does not apply here: an option of another optimizer
        known.chosen[option] = row.choice(known)
        reason = row.reason.format(k=known, origin=said[option], origins=said)
        decisions.append(Decision(option, known.chosen[option], reason))
    fields_of_plan = {each.name for each in fields(Plan)}
    chosen = {option.replace(".", "_"): value for option, value in known.chosen.items()}
    return Plan(
        **{name: value for name, value in chosen.items() if name in fields_of_plan},
        optim_options=own_options(known.chosen),
        schedule=shape_of(known),
        average=known.averaging(),
        decisions=tuple(decisions),
    )


def _check(known: Known, option: str) -> None:
    for refusal in REFUSALS.get(option, ()):
        if refusal.when(known):
            raise ConfigError(refusal.message(known))


def device_of(config: Config, facts: Facts) -> torch.device:
    """Return the device that the Plan will have; what is built before a Plan may use it.

    Raises:
        ConfigError: a device was said that cannot be had.
    """
    known = Known(config, facts, Given(train_samples=None, in_memory=False))
    _check(known, "device")
    device: torch.device = next(row for row in TABLE["device"] if row.when(known)).choice(known)
    return device


def seed_of(config: Config) -> int:
    """Return the seed that the Plan will have; the model is built before there is a Plan."""
    return DEFAULT_SEED if isinstance(config.seed, NotSet) else config.seed
