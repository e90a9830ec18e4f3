"""`resolve(Config, Facts, Given) -> Plan`."""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import fields

import torch

from surestep.base.config import Config
from surestep.base.errors import ConfigError
from surestep.base.not_set import NOT_SET, NotSet
from surestep.base.written import COMMAND_LINE, flag
from surestep.engine.facts import Facts
from surestep.engine.parallel.deepspeed_config import keys_of
from surestep.engine.parallel.deepspeed_options import taken_over
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
            if error.option not in asked.said():
                break
            wrong.append(error.option)
            asked = asked.with_options({error.option: NOT_SET})
    if faults:
        raise ConfigError("\n".join(faults)) from None
    return plan


class _Refused(ConfigError):
    """A refusal, with the option that it is of."""

    def __init__(self, text: str, option: str) -> None:
        super().__init__(text)
        self.option = option


def _with_deepspeeds(
    config: Config, facts: Facts, origins: Mapping[str, str]
) -> tuple[Config, Mapping[str, str]]:
    """Return the Config with what a table of DeepSpeed sets and the Config does not."""
    said = config.said()
    if "parallel.deepspeed" not in said:
        return config, origins
    keys = keys_of(said["parallel.deepspeed"])
    taken = taken_over(keys, said, facts.launched.size)
    places = dict.fromkeys(taken, "parallel.deepspeed")
    return config.with_options(taken, places), {**origins, **places}


def _mentions(text: str, option: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(option)}(?![\w.]*\w)", text) is not None


def _with_places(text: str, config: Config, origins: Mapping[str, str]) -> str:
    """Add to a message where each option in it was set."""
    lines = config.places()
    places = {}
    for name in config.said():
        place = origins.get(name, "")
        if place.startswith("recipe "):  # which line of it
            place = lines.get(name, place)
        if _mentions(text, name):
            places[name] = flag(name) if place == COMMAND_LINE else place or lines.get(name, "")
    shown = ", ".join(f"{name}: {place}" for name, place in places.items() if place)
    return f"{text} ({shown})" if shown else text


def _resolve(config: Config, facts: Facts, given: Given, origins: Mapping[str, str]) -> Plan:
    """Decide every option, where all that is asked can be.

    Raises:
        _Refused: the first wish that cannot be kept.
    """
    said = defaultdict(lambda: "Python", origins)
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
    """Raise every refusal of an option that holds.

    Raises:
        _Refused: some do.
    """
    found: list[str] = []
    for refusal in REFUSALS.get(option, ()):
        try:
            if refusal.when(known):
                found.append(refusal.message(known))
        except Exception:
            if not found:  # else it may rest on what was refused before it
                raise
    if found:
        raise _Refused("\n".join(found), option)


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
