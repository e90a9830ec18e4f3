"""Samplers and pruners by name, with their options: "tpe:startup=20", "percentile:25,warmup=2"."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from surestep.base.errors import ConfigError, suggest_names
from surestep.config.duration import format_number

AUTO: Literal["auto"] = "auto"
Value = float | Literal["auto"]


@dataclass(frozen=True)
class Option:
    """An option of a sampler or a pruner.

    Attributes:
        default: its value, whose type is that of the option; AUTO is of an integer that depends on
            the trial.
        low: smallest value.
        high: largest value, if there is one.
    """

    default: Value
    low: float = 0
    high: float | None = None


@dataclass(frozen=True)
class Method:
    """A sampler or a pruner.

    Attributes:
        about: what it does, in one line.
        options: by name; the first may be given without its name.
        packages: modules that it imports, beside Optuna, with the packages that have them.
    """

    about: str
    options: Mapping[str, Option]
    packages: Mapping[str, str]


_STARTUP = {"startup": Option(10)}
_TRIALS = {"startup": Option(5), "warmup": Option(AUTO)}
SAMPLERS: Mapping[str, Method] = {
    "tpe": Method("a density of good and of bad trials; random for the first ones", _STARTUP, {}),
    "random": Method("independent values", {}, {}),
    "grid": Method("all combinations, in an order that the seed decides", {}, {}),
    "qmc": Method(
        "a scrambled Sobol sequence, which covers the space evenly", {}, {"scipy": "scipy"}
    ),
    "cmaes": Method(
        "an evolution strategy for ranges; random for choices",
        {"startup": Option(1)},
        {"cmaes": "cmaes"},
    ),
    "gp": Method("a Gaussian process; random for the first trials", _STARTUP, {"scipy": "scipy"}),
}
PRUNERS: Mapping[str, Method] = {
    "none": Method("no trial is pruned", {}, {}),
    "median": Method("a trial below the median of the finished trials", _TRIALS, {}),
    "percentile": Method(
        "a trial that is not among the best N percent",
        {"keep": Option(25.0, 0, 100), **_TRIALS},
        {},
    ),
    "patient": Method(
        "as median, if the trial did not improve for N evaluations",
        {"patience": Option(2), **_TRIALS},
        {},
    ),
    "halving": Method(
        "the worse trials at each power of `factor`",
        {"factor": Option(4, 2), "min": Option(1, 1)},
        {},
    ),
    "hyperband": Method(
        "several halvings with different first evaluations",
        {"factor": Option(3, 2), "min": Option(1, 1), "max": Option(0)},
        {},
    ),
    "wilcoxon": Method(
        "a trial that is worse than the best one by a signed-rank test",
        {"p": Option(0.1, 0, 1), "warmup": Option(2)},
        {"scipy": "scipy"},
    ),
}

DEFAULT_PRUNER = "percentile:25"  # docs/decisions/0054-default-pruner.md


def parse_method(kind: str, text: str, known: Mapping[str, Method]) -> tuple[str, dict[str, Value]]:
    """Parse a name with options, such as "percentile:25,warmup=2".

    Args:
        kind: "sampler" or "pruner".
        text: as it is typed.
        known: the samplers or pruners.

    Returns:
        The name, and the value of each of its options.

    Raises:
        ConfigError: there is no such name or option, or a value is not allowed.
    """
    name, colon, rest = text.strip().lower().partition(":")
    if name not in known:
        raise ConfigError(f"There is no {kind} {name!r}. {suggest_names(name, known)}")
    options = known[name].options
    values = {option: info.default for option, info in options.items()}
    for index, word in enumerate(rest.split(",") if colon else ()):
        option, equals, value = (part.strip() for part in word.partition("="))
        if not equals and index == 0 and options:
            option, value = next(iter(options)), option
        if option not in options:
            raise ConfigError(
                f"--{kind} {text}: {name} has no option {option!r}. "
                f"{suggest_names(option, options)}"
            )
        values[option] = _parse_value(f"--{kind} {text}: {option}={value}", value, options[option])
    return name, values


def complete_method(
    kind: str, text: str, known: Mapping[str, Method], *, auto: Value = AUTO
) -> str:
    """Return a name with all of its options, so that a study records what it uses.

    Args:
        kind: "sampler" or "pruner".
        text: as it is typed.
        known: the samplers or pruners.
        auto: the value of an option that is not set and whose default is AUTO.

    Raises:
        ConfigError: there is no such name or option, or a value is not allowed.
    """
    name, values = parse_method(kind, text, known)
    words = [
        f"{option}={_format(auto if value == AUTO else value)}" for option, value in values.items()
    ]
    return f"{name}:{','.join(words)}" if words else name


def _format(value: Value) -> str:
    return value if isinstance(value, str) else format_number(float(value))


def _parse_value(place: str, text: str, option: Option) -> Value:
    if option.default == AUTO and text.lower() == AUTO:
        return AUTO
    is_whole = not isinstance(option.default, float)
    range_ = f"from {option.low:g}" + ("" if option.high is None else f" to {option.high:g}")
    try:
        value = int(text) if is_whole else float(text)
        if not option.low <= value <= (2**31 if option.high is None else option.high):
            raise ValueError
    except ValueError:
        kind = "an integer" if is_whole else "a number"
        or_auto = f", or {AUTO}" if option.default == AUTO else ""
        raise ConfigError(f"{place} is not {kind} {range_}{or_auto}.") from None
    return value
