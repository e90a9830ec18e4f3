"""A group of options, which turns what pydantic finds into sentences."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, ClassVar, Self, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from surestep.base.errors import ConfigError, near


class Group(BaseModel):
    """A group of options; the ones of the Config itself have an empty `prefix`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    prefix: ClassVar[str] = ""

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(data)
        except ValidationError as error:
            found = "\n".join(_sentence(cls, detail) for detail in error.errors())
            raise ConfigError(found) from None


def _sentence(group: type[Group], detail: Mapping[str, Any]) -> str:
    """Turn one of pydantic's findings into a sentence that names what to type."""
    name = str(detail["loc"][0]) if detail["loc"] else ""
    full = (group.prefix + name).rstrip(".")
    if detail["type"] == "extra_forbidden":
        groups = (each for each in Group.__subclasses__() if name in each.model_fields)
        elsewhere = _ELSEWHERE.get(name) or [each.prefix + name for each in groups]
        # Compared without the group, which all of them share.
        own = near(name, group.model_fields, group.prefix)
        meant = " or ".join(map(repr, elsewhere))
        return f"There is no option {full!r}. {f'Did you mean {meant}?' if elsewhere else own}"
    what = detail["msg"].removeprefix("Value error, ").replace("Input should be", "it must be")
    if detail["type"] == "tuple_type":
        what = f"it must be a list, such as [{detail['input']!r}]"
    if detail["type"] == "too_short":
        what = f"it takes at least {detail['ctx']['min_length']} values"
    if detail["type"] == "missing":
        what = f"it takes {_HOW_MANY[_length(group.model_fields[name].annotation)]} numbers"
    meant = ""
    if detail["type"] == "literal_error" and isinstance(detail["input"], str):
        known = re.findall(r"'([^']+)'", detail["ctx"]["expected"])
        close = get_close_matches(detail["input"], known, n=1)
        meant = f" Did you mean {close[0]!r}?" if close else ""
    return f"{full}={detail['input']!r} is not allowed: {what}.{meant}"


# What people who come from other libraries type.
_ELSEWHERE = {
    "learning_rate": ["optim.lr"],
    "wd": ["optim.weight_decay"],
    "max_epochs": ["epochs"],
    "num_epochs": ["epochs"],
    "num_train_epochs": ["epochs"],
    "gradient_clip_val": ["max_grad_norm"],
    "gradient_accumulation_steps": ["micro_batch_size"],
    "accumulate_grad_batches": ["micro_batch_size"],
    "gradient_checkpointing": ["activation_checkpointing"],
    "torch_compile": ["compile"],
}
_HOW_MANY = {2: "two", 3: "three"}


def _length(annotation: Any) -> int:
    """Return how many values an option takes whose type is `tuple[...] | None`."""
    inner = get_args(annotation)
    return len(inner) if get_origin(annotation) is tuple else max(map(_length, inner), default=0)
