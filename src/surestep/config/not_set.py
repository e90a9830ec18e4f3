"""The value of an option that is not set. None is a different value: it means off."""

from enum import Enum
from typing import Any, Final, Literal

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


class NotSet(Enum):
    """Type of NOT_SET, the value of an option that is not set. surestep then chooses it."""

    NOT_SET = "not set"

    def __bool__(self) -> Literal[False]:
        """Return False, so that `config.batch_size or 64` works."""
        return False

    def __repr__(self) -> str:
        """Return its name."""
        return "NOT_SET"

    __str__ = __repr__

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, __: GetCoreSchemaHandler) -> CoreSchema:
        """Accept only the instance itself, and not its text."""
        return core_schema.is_instance_schema(cls, serialization=core_schema.to_string_ser_schema())


NOT_SET: Final = NotSet.NOT_SET
