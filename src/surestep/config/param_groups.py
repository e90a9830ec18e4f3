"""Parameter groups: a name pattern, and the settings of the parameters that it matches."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator

from surestep.base.errors import ConfigError
from surestep.config.duration import format_number, parse_duration, parse_number

_NEEDS = "such as 'head.* lr=1e-3', 'type:LayerNorm decay=0' or \"encoder.* freeze='2 epochs'\""
_NAMES = {"lr": "lr", "decay": "weight_decay", "weight_decay": "weight_decay", "freeze": "freeze"}
_SETTING = re.compile(
    r"\s+(\w+)(?:=('[^']*'|\"[^\"]*\"|[0-9.]+(?:e[+-]?[0-9]+)?\s+(?:epochs?|steps?)\b|\S+))?"
)


@dataclass(frozen=True)
class ParamGroup:
    """Settings of the parameters that a pattern matches.

    Attributes:
        pattern: shell-style, on names of parameters and modules (a module selects all its
            parameters), or "type:LayerNorm" for the modules of a class.
        lr: peak learning rate, or text such as "0.1x", a multiple of `optim.lr`.
        weight_decay: weight decay.
        freeze: True freezes for the full run, "2 epochs" or "500 steps" until then; False overrides
            an earlier group.

    Raises:
        ConfigError: a value is invalid, or no setting is given.
    """

    pattern: str
    lr: float | str | None = None
    weight_decay: float | None = None
    freeze: bool | str | None = None

    def __post_init__(self) -> None:
        if not self.pattern or self.pattern == "type:" or re.search(r"\s", self.pattern):
            raise ConfigError(
                f"optim.groups: {self.pattern!r} is not a pattern. Pass one, {_NEEDS}."
            )
        if self.lr is None and self.weight_decay is None and self.freeze is None:
            raise ConfigError(
                f"optim.groups: {self.pattern!r} has no setting. Add lr, decay or freeze, {_NEEDS}."
            )
        for name, read in (("lr", _rate), ("weight_decay", _decay), ("freeze", _freeze)):
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, None if value is None else read(value))
            except ValueError as error:
                typed = f"{name.removeprefix('weight_')}={value!r}"
                raise ConfigError(
                    f"optim.groups: {typed} of {self.pattern!r} is not allowed: {error}."
                ) from None

    def __str__(self) -> str:
        """Return the text from which the same group can be parsed."""
        words = [self.pattern]
        if self.lr is not None:
            words.append(f"lr={self.lr if isinstance(self.lr, str) else format_number(self.lr)}")
        if self.weight_decay is not None:
            words.append(f"decay={format_number(self.weight_decay)}")
        if self.freeze is not None:
            until = f"='{self.freeze}'" if isinstance(self.freeze, str) else ""
            words.append("freeze=no" if self.freeze is False else f"freeze{until}")
        return " ".join(words)


def parse_param_group(text: str) -> ParamGroup:
    """Read "head.* lr=1e-3 decay=0"; a value with a space may be in quotes.

    Raises:
        ConfigError: the text cannot be read.
    """
    pattern, _, rest = text.strip().partition(" ")
    settings: dict[str, Any] = {}
    left = " " + rest.rstrip()
    while (match := _SETTING.match(left)) and match[1] in _NAMES:
        if match[2] is None and match[1] != "freeze":
            break
        value = True if match[2] is None else match[2].strip("'\"")
        settings[_NAMES[match[1]]] = False if value == "no" else value
        left = left[match.end() :]
    left = left.strip()
    if left:
        raise ConfigError(
            f"optim.groups: {left!r} in {text!r} cannot be read. Write a pattern and then lr=, "
            f"decay= or freeze, {_NEEDS}."
        )
    return ParamGroup(pattern, **settings)


def _rate(value: Any) -> float | str:
    """Parse a learning rate, or a multiple of optim.lr as text."""
    text = str(value).strip()
    number = parse_number(text.removesuffix("x"))
    if not number:
        raise ValueError(
            "a rate above zero such as 1e-3, or a multiple of optim.lr such as 0.1x. To keep the "
            "rate at zero, use freeze"
        )
    return f"{format_number(number)}x" if text.endswith("x") else number


def _decay(value: Any) -> float:
    number = parse_number(str(value))
    if number is None:
        raise ValueError("a number that is not below zero, such as 0 or 0.05")
    return number


def _freeze(value: Any) -> bool | str:
    if isinstance(value, bool):
        return value
    try:
        return str(parse_duration(str(value), ("epochs", "steps")))
    except ValueError as error:
        raise ValueError(f"{error}; or only the word freeze, for good") from None


def _texts(value: Any) -> tuple[str, ...]:
    """Return groups as the text that is stored."""
    several = (value,) if isinstance(value, (str, ParamGroup, Mapping)) else value
    if not isinstance(several, (tuple, list)):
        raise ValueError(f"it must be a list of text, {_NEEDS}")
    return tuple(str(_one(group)) for group in several)


def _one(value: Any) -> ParamGroup:
    """Parse one group: text, or a dict as torch takes it, with a pattern as its parameters."""
    if isinstance(value, ParamGroup):
        return value
    if not isinstance(value, Mapping):
        return parse_param_group(str(value))
    options = {_NAMES.get(str(name), str(name)): setting for name, setting in value.items()}
    pattern = options.pop("params", options.pop("pattern", None))
    if not isinstance(pattern, str) or not options.keys() <= set(_NAMES.values()):
        raise ConfigError(
            "optim.groups takes a name pattern, lr, weight_decay and freeze. Use "
            "groups=[surestep.ParamGroup('head.*', lr=1e-3)]; for other options of parameters use "
            "Task(optimizer=lambda groups: torch.optim.AdamW(groups))."
        )
    return ParamGroup(pattern, **options)


AnyParamGroup = str | ParamGroup | Mapping[str, Any]
Groups = Annotated[tuple[str, ...], BeforeValidator(_texts)]
