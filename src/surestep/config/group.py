"""Base class of option groups: parses what users type, and explains what is wrong."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from surestep.base.errors import ConfigError, suggest_names
from surestep.base.written import form_of, shown_place, user_line, written
from surestep.config.choices import MAIN, OFF, Choice, plain_value, read_word
from surestep.config.foreign_names import describe
from surestep.config.not_set import NOT_SET, NotSet
from surestep.config.option import UNKNOWN, ResumeEffect

_LOCATIONS = "_locations"
Locations = Mapping[str, str]  # where each option was set, by its full name


class ConfigGroup(BaseModel):
    """A group of options.

    Attributes:
        prefix: of the options' full names, such as "optim."; empty for the Config itself.
        resume: the effect of a change when a run resumes, for options that declare none.
        requires: what every option of the group requires.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    prefix: ClassVar[str] = ""
    resume: ClassVar[ResumeEffect] = UNKNOWN
    requires: ClassVar[Mapping[str, Any]] = {}

    # Not in __init__: pydantic skips its own validation if a class defines __init__.
    def __new__(cls, *values: Any, **_: Any) -> Self:
        """Make one; options are passed by name.

        Raises:
            ConfigError: an option is passed by position.
        """
        if values:
            raise ConfigError(_by_name(cls, values))
        return super().__new__(cls)

    @model_validator(mode="wrap")
    @classmethod
    def _read(
        cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        """Parse all options, and raise one error that lists every fault."""
        if not isinstance(data, Mapping):
            return handler(data)
        locations: Locations = (info.context or {}).get("locations", {})
        faults: list[str] = []
        options = {}
        for name, value in data.items():
            try:
                options[name] = _value(cls, name, value, info.context)
            except ConfigError as error:  # of a group, whose message has its location
                faults.append(str(error))
            except ValueError as error:
                what = _what(cls.prefix + name, error, cls, locations)
                sentence = not_allowed(cls.prefix + name, value, what)
                faults.append(placed(cls.prefix + name, sentence, locations))
        for name in [name for name in options if name not in cls.model_fields]:
            faults.append(_unknown(cls, name, data, locations))
            del options[name]
        try:
            made = handler({name: value for name, value in options.items() if value is not NOT_SET})
        except ValidationError as error:
            faults += _sentences(cls, error, data, locations)
        except ConfigError as error:  # two options that contradict each other
            faults.append(placed("", str(error), locations))
        if faults:
            raise ConfigError("\n".join(faults)) from None
        if options:  # like a cached property: neither compared nor saved
            made.__dict__[_LOCATIONS] = {None: user_line(), **locations}
        return made

    def place(self, option: str) -> str:
        """Return where an option was set, such as "recipe.py:12"; "" if it is not known."""
        locations = self.__dict__.get(_LOCATIONS, {})
        return str(locations.get(option) or locations.get(None, ""))

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Check that each option has the default NOT_SET."""
        for name, field in cls.model_fields.items():
            if field.default is not NOT_SET and not isinstance(field.default, ConfigGroup):
                raise TypeError(f"{cls.__name__}.{name} must have default=NOT_SET")


class _Kind(NamedTuple):
    """What the type of an option says about its values.

    Attributes:
        choices: the words that it takes.
        members: the classes that it takes.
        length: the number of values; 0 is any number, None a single value.
    """

    choices: tuple[str, ...]
    members: tuple[type, ...]
    length: int | None


@cache
def _kind(group: type[ConfigGroup], name: str) -> _Kind:
    """Return the kind of an option."""
    choices: list[str] = []
    members: list[type] = []
    lengths: list[int] = []

    def collect(annotation: Any) -> None:
        origin, inner = get_origin(annotation), get_args(annotation)
        if origin is Literal:
            choices.extend(str(choice) for choice in inner)
        elif origin is tuple:
            lengths.append(0 if Ellipsis in inner else len(inner))
        elif origin is Annotated:
            collect(inner[0])
        elif isinstance(annotation, UnionType) or inner:
            for part in inner:
                collect(part)
        elif isinstance(annotation, type):
            members.append(annotation)

    collect(group.model_fields[name].annotation)
    return _Kind(tuple(choices), tuple(members), max(lengths, default=None))


def _value(group: type[ConfigGroup], name: str, value: Any, context: Any) -> Any:
    """Convert a value to what pydantic takes.

    Raises:
        ValueError: the value could mean two things.
        ConfigError: a group of options has faults.
    """
    if value is NOT_SET or name not in group.model_fields:
        return value
    default = group.model_fields[name].default
    if isinstance(default, ConfigGroup):
        return _group(type(default), name, value, context)
    kind = _kind(group, name)
    value = read_word(group.prefix + name, value, kind.choices)
    if isinstance(value, NotSet):
        return value
    if value == "auto" and "auto" not in kind.choices and str not in kind.members:
        return NOT_SET  # the Plan decides, as if it was not set
    if kind.length is not None and name not in _OF_TEXT:
        return _several(value)
    return _number(value) if {int, float} & set(kind.members) else value


_OF_TEXT = ("groups", "exclude_samples")  # tuples of text that may contain commas


def _group(group: type[ConfigGroup], name: str, value: Any, context: Any) -> Any:
    """Return a group of options from a dict, or from the value of its main option."""
    if isinstance(value, group) or value is None:
        return NOT_SET if value is None else value
    if not isinstance(value, Mapping):
        if hasattr(value, "param_groups"):
            raise ValueError(
                "it is an optimizer object, which needs the Task's model: write "
                "Task(optimizer=lambda params: torch.optim.AdamW(params))"
            )
        if name not in MAIN or isinstance(value, ConfigGroup):
            raise ValueError(f"it takes options by name: write {name}={group.__name__}(...)")
        value = {MAIN[name]: value}
    return group.model_validate(value, context=context)


def _several(value: Any) -> Any:
    """Split "0.9,0.95", ("0.9,0.95",) and "[0.9, 0.95]" into values."""
    if isinstance(value, (list, tuple)) and len(value) == 1 and isinstance(value[0], str):
        value = value[0]
        return _several(value) if "," in value else (value,)
    if isinstance(value, str) and ("," in value or value[:1] in "[("):
        words = (word.strip(" \t'\"") for word in value.strip("[]() ").split(","))
        return tuple(word for word in words if word)
    return value


_COUNTED = re.compile(r"([0-9._]+(?:e[+-]?[0-9]+)?)\s*([km%]?)", re.IGNORECASE)
_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "%": 0.01}


def _number(value: Any) -> Any:
    """Parse "1k", "1_000", "1e4" or "10%"; return any other value unchanged."""
    match = _COUNTED.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return value
    try:
        number = float(match[1])
    except ValueError:
        return value
    scale = _SCALES[match[2].lower()]
    return number if scale == 1 else round(number * scale, 12)


def _sentences(
    group: type[ConfigGroup], error: ValidationError, data: Mapping[str, Any], locations: Locations
) -> list[str]:
    """Return a sentence for each fault that pydantic found."""
    found: dict[tuple[str, str], str] = {}
    for detail in error.errors():
        name = str(detail["loc"][0]) if detail["loc"] else ""
        if detail["type"] != "is_instance_of":  # NOT_SET, which every option may be
            sentence = _sentence(group, name, detail, data, locations)
            found.setdefault((name, sentence), placed(group.prefix + name, sentence, locations))
    return list(found.values())


def _sentence(
    group: type[ConfigGroup],
    name: str,
    detail: Mapping[str, Any],
    data: Mapping[str, Any],
    locations: Locations,
) -> str:
    """Return a sentence for one of pydantic's errors, with what to type."""
    full = (group.prefix + name).rstrip(".")
    typed = data.get(name)
    whole = len(detail["loc"]) == 1 or not isinstance(typed, (list, tuple))
    value = plain_value(typed if whole and name in data else detail["input"])
    what = detail["msg"].removeprefix("Value error, ").replace("Input should be", "it must be")
    if isinstance(error := detail.get("ctx", {}).get("error"), Choice):
        what = _what(full, error, group, locations)
    length = _kind(group, name).length if name in group.model_fields else None
    if detail["type"] in ("tuple_type", "missing", "too_long") and length:
        example = written(
            full, _PAIRS[full], form_of(_place(full, locations)), group.prefix.rstrip(".")
        )
        what = f"it takes {_HOW_MANY[length]} numbers, such as {example}"
    elif detail["type"] == "tuple_type":
        what = f"it must be a list, such as [{value!r}]"
    if detail["type"] == "too_short":
        what = f"it takes at least {detail['ctx']['min_length']} values"
    if full in OFF and "rite " not in what and "'off'" not in what:
        what += ", or 'off'"
    meant = ""
    if detail["type"] == "literal_error" and isinstance(value, str):
        known = re.findall(r"'([^']+)'", detail["ctx"]["expected"])
        close = get_close_matches(value.lower(), known, n=1)
        meant = f" Did you mean {close[0]!r}?" if close else ""
    return f"{not_allowed(full, value, what)}{meant}"


def _what(option: str, error: ValueError, group: type[ConfigGroup], locations: Locations) -> str:
    """Return what is wrong with a value; if it has two meanings, how to type each of them."""
    if not isinstance(error, Choice):
        return str(error)
    form, own = form_of(_place(option, locations)), group.prefix.rstrip(".")
    between = {"python": ", ", "cli": " ", "toml": " and "}[form]
    texts = [
        text
        if isinstance(text, str)
        else between.join(written(n or option, value, form, own) for n, value in text.items())
        for text in error.texts
    ]
    verb = "Write" if error.question[-1] in ".?" else "write"
    return f"{error.question} {verb} {' or '.join(texts)}"


def not_allowed(option: str, value: Any, what: str) -> str:
    """Return a sentence that a value is not allowed, and what is."""
    end = "" if "rite " in what or what.endswith((".", "?")) else "."  # text to type ends as it is
    return f"{option}={value!r} is not allowed: {what}{end}"


_PAIRS: Mapping[str, tuple[float | None, ...]] = {
    "optim.betas": (0.9, 0.999),
    "optim.eps": (None, 1e-3),
    "optim.etas": (0.5, 1.2),
    "optim.step_sizes": (1e-6, 50.0),
    "optim.ns_coefficients": (3.4445, -4.775, 2.0315),
}
_HOW_MANY = {2: "two", 3: "three"}


def _unknown(
    group: type[ConfigGroup], name: str, data: Mapping[str, Any], locations: Locations
) -> str:
    """Return a sentence that there is no such option, and which one may be meant."""
    full, value = group.prefix + name, data[name]
    form, own = form_of(_place(full, locations)), group.prefix.rstrip(".")
    meant = describe(name, value, data, form, own)
    groups = [kind for kind in ConfigGroup.__subclasses__() if name in kind.model_fields]
    groups.sort(
        key=lambda kind: (kind.prefix != "optim.", kind.prefix)
    )  # optim.lr before average.lr
    if meant is None and groups:
        options = " or ".join(repr(kind.prefix + name) for kind in groups)
        example = written(groups[0].prefix + name, value, form, own)
        meant = f"Did you mean {options}? Write {example}"
    # Compared without the group, which all of them share.
    meant = meant or suggest_names(name, group.model_fields, group.prefix)
    return placed(full, f"There is no option {full!r}. {meant}", locations)


def placed(option: str, sentence: str, locations: Locations) -> str:
    """Prefix a sentence with the location at which the option was set."""
    place = shown_place(option, _place(option, locations))
    return f"{place}: {sentence}" if place and option else sentence


def _place(option: str, locations: Locations) -> str | None:
    """Return where an option, or else its group, was set."""
    return locations.get(option) or locations.get(option.rpartition(".")[0])


def _by_name(group: type[ConfigGroup], values: tuple[Any, ...]) -> str:
    """Return a sentence that options are passed by name, with the values that were passed."""
    names = ["name", "lr"] if group.prefix == "optim." else []
    main = MAIN.get(group.prefix.rstrip("."), next(iter(group.model_fields)))
    names = names or [main]
    typed = ", ".join(f"{name}={value!r}" for name, value in zip(names, values, strict=False))
    rest = ", ..." if len(values) > len(names) else ""
    return f"{group.__name__} takes options by name: write {group.__name__}({typed}{rest})"
