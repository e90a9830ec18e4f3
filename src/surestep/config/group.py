"""Base class of option groups: parses what users type, and explains what is wrong."""

import re
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from inspect import cleandoc
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args, get_origin

from pydantic import (
    VERSION,
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from surestep.base.errors import ConfigError, suggest_names
from surestep.base.locations import shown_place, user_line
from surestep.base.secrets import mask_secrets
from surestep.config.duration import parse_number, parse_percent
from surestep.config.not_set import NOT_SET, NotSet
from surestep.config.option import UNKNOWN, ResumeEffect, list_types
from surestep.config.spellings import OFF, WORDS, plain_value, read_word, what_to_use

# The main option of each group: `optim="adamw"` means `optim.name="adamw"`.
MAIN: Mapping[str, str] = {
    **{"optim": "name", "schedule": "name", "average": "kind", "parallel": "strategy"},
    **{"validation": "every", "checkpoint": "every", "logging": "every"},
    "early_stop": "patience",
}
_CHOICE_NAMES = ("name", "kind", "strategy", "type")  # of such a main option, in some library

# Before 2.12, threads that build a schema of pydantic at the same time break each other.
_CAN_DEFER = tuple(map(int, VERSION.split(".")[:2])) >= (2, 12)
_LOCATIONS = "_locations"
Locations = Mapping[str, str]  # where each option was set, by its full name


class ConfigGroup(BaseModel):
    """A group of options.

    Attributes:
        prefix: of the options' full names, such as "optim."; empty for the Config itself.
        resume: the effect of a change when a run resumes, for options that declare none.
        requires: what every option of the group requires.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=_CAN_DEFER)
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
            name = MAIN.get(cls.prefix.rstrip("."), next(iter(cls.model_fields)))
            raise ConfigError(
                f"{cls.__name__} takes options by name: {cls.__name__}({name}={values[0]!r})."
            )
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
                sentence = not_allowed(cls.prefix + name, value, str(error))
                faults.append(placed(cls.prefix + name, sentence, locations))
        for name in [name for name in options if name not in cls.model_fields]:
            faults.append(_unknown(cls, name, data[name], locations))
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
        """Return where an option was set, such as "recipe.py:12"; "" if it is not known.

        Args:
            option: its full name.
        """
        locations = self.__dict__.get(_LOCATIONS, {})
        return str(locations.get(option) or locations.get(None, ""))

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Check that each option has the default NOT_SET, and list the options in `help()`."""
        texts = []
        for name, field in cls.model_fields.items():
            if field.default is NOT_SET:
                texts.append(f"    {name}: {field.description}")
            elif not isinstance(field.default, ConfigGroup):
                raise TypeError(f"{cls.__name__}.{name} must have default=NOT_SET")
        cls.__doc__ = "\n".join([cleandoc(cls.__doc__ or ""), "", "Options:", *texts])


def declare_group(group: type[ConfigGroup]) -> Any:
    """Declare an attribute of the Config: a group of options, of which none is set."""
    return group.model_construct()  # without a schema, which is built when an option is set


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
    types = list_types(group.model_fields[name].annotation)
    words = [get_args(kind) for kind in types if get_origin(kind) is Literal]
    tuples = [get_args(kind) for kind in types if get_origin(kind) is tuple]
    return _Kind(
        choices=tuple(str(word) for several in words for word in several),
        members=tuple(kind for kind in types if isinstance(kind, type)),
        length=max((0 if Ellipsis in inner else len(inner) for inner in tuples), default=None),
    )


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


_OF_TEXT = ("groups", "exclude_samples", "ignore")  # tuples of text that may contain commas


def _group(group: type[ConfigGroup], name: str, value: Any, context: Any) -> Any:
    """Return a group of options from a dict, or from the value of its main option."""
    if isinstance(value, group) or value is None:
        return NOT_SET if value is None else value
    if not isinstance(value, Mapping):
        if hasattr(value, "param_groups"):
            raise ValueError(
                "it is an optimizer object, which needs the Task's model. Use "
                "Task(optimizer=lambda params: torch.optim.AdamW(params))"
            )
        if name not in MAIN or isinstance(value, ConfigGroup):
            raise ValueError(f"it takes options by name. Use {name}={group.__name__}(...)")
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


def _number(value: Any) -> Any:
    """Parse "1k", "1_000", "1e4" or "10%"; return any other value unchanged."""
    if not isinstance(value, str):
        return value
    if not value.strip().endswith("%"):
        number = parse_number(value)
        return value if number is None else number
    percent = parse_percent(value)
    return value if percent is None else round(percent / 100, 12)


def _sentences(
    group: type[ConfigGroup], error: ValidationError, data: Mapping[str, Any], locations: Locations
) -> list[str]:
    """Return a sentence for each fault that pydantic found."""
    found: dict[tuple[str, str], str] = {}
    details = [one for one in error.errors() if one["type"] != "is_instance_of"]  # of NOT_SET
    of_numbers = {one["loc"][0] for one in details if one["type"] != "literal_error" and one["loc"]}
    for detail in details:
        name = str(detail["loc"][0]) if detail["loc"] else ""
        if detail["type"] == "literal_error" and name in of_numbers:
            continue  # a number or a word, which the sentence about the number names
        sentence = _sentence(group, name, detail, data)
        found.setdefault((name, sentence), placed(group.prefix + name, sentence, locations))
    return list(found.values())


def _sentence(group: type[ConfigGroup], name: str, detail: Any, data: Mapping[str, Any]) -> str:
    """Return a sentence for one of pydantic's errors."""
    full, typed = (group.prefix + name).rstrip("."), data.get(name)
    of_item = len(detail["loc"]) > 1 and isinstance(typed, (list, tuple))
    value = plain_value(detail["input"] if of_item or name not in data else typed)
    what = detail["msg"].removeprefix("Value error, ").replace("Input should be", "it must be")
    length = _kind(group, name).length if name in group.model_fields else None
    if detail["type"] in ("tuple_type", "missing", "too_long") and length:
        what = f"it takes {length} numbers"
    elif detail["type"] == "tuple_type":
        what = f"it must be a list, such as [{value!r}]"
    elif detail["type"].endswith("_parsing"):  # "unable to parse string as a number" adds nothing
        what = what.partition(",")[0]
    word = "off" if full in OFF else WORDS.get(full)
    if word is not None and ". Use " not in what and f"{word!r}" not in what:
        what += f", or {word!r}"
    meant = ""
    if detail["type"] == "literal_error" and isinstance(value, str):
        known = re.findall(r"'([^']+)'", detail["ctx"]["expected"])
        close = get_close_matches(value.lower(), known, n=1)
        meant = f" Did you mean {close[0]!r}?" if close else ""
    return f"{not_allowed(full, value, what)}{meant}"


def not_allowed(option: str, value: Any, what: str) -> str:
    """Return a sentence that a value is not allowed, and what is."""
    return f"{option}={mask_secrets(repr(value))} is not allowed: {what}."


def _unknown(group: type[ConfigGroup], name: str, value: Any, locations: Locations) -> str:
    """Return a sentence that there is no such option, and which one may be meant."""
    full = group.prefix + name
    instead = suggest_option(full, value)
    groups = [kind for kind in ConfigGroup.__subclasses__() if name in kind.model_fields]
    if instead is not None:
        meant = f"Use {instead}."
    elif groups:
        groups.sort(key=lambda kind: (kind.prefix != "optim.", kind.prefix))  # before average.lr
        meant = f"Did you mean {' or '.join(repr(kind.prefix + name) for kind in groups)}?"
    else:  # compared without the group, which all of them share
        meant = suggest_names(name, group.model_fields, group.prefix)
    return placed(full, f"There is no option {full!r}. {meant}", locations)


def suggest_option(option: str, value: Any) -> str | None:
    """Return what to set instead of an option that does not exist; None if that is not known.

    Args:
        option: its full name, as "average.name".
        value: that was set.
    """
    group, _, name = option.rpartition(".")
    kind = next((one for one in ConfigGroup.__subclasses__() if one.prefix == f"{group}."), None)
    is_choice = kind is not None and group in MAIN and name in _CHOICE_NAMES
    choices = _kind(kind, MAIN[group]).choices if is_choice else ()
    if not choices:
        return what_to_use(name, value)
    main = f"{group}.{MAIN[group]}"
    with suppress(ValueError):
        value = read_word(main, value, choices)
    words = [value] if value in choices else choices
    return f"{main}={' or '.join(map(repr, words))}"


def placed(option: str, sentence: str, locations: Locations) -> str:
    """Prefix a sentence with the location at which the option, or its group, was set."""
    where = locations.get(option) or locations.get(option.rpartition(".")[0])
    place = shown_place(option, where)
    return f"{place}: {sentence}" if place and option else sentence
