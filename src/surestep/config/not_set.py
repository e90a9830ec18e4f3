"""The value of an option that was not set. None is a value of its own, and means off."""

from typing import Any, Final, Literal, Self

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


class NotSet:
    """An option that was not set, which the Plan decides. NOT_SET is the one object."""

    __slots__ = ()
    _one: "NotSet | None" = None

    def __new__(cls) -> Self:
        """Return the one object, so that copying and pickling keep its identity."""
        if cls._one is None:
            cls._one = super().__new__(cls)
        assert isinstance(cls._one, cls)
        return cls._one

    def __bool__(self) -> Literal[False]:
        """Return False, so that `config.batch_size or 64` reads as it should."""
        return False

    def __repr__(self) -> str:
        """Return its name."""
        return "NOT_SET"

    def __reduce__(self) -> tuple[type["NotSet"], tuple[()]]:
        """Pickle and copy it as the call that returns the one object."""
        return NotSet, ()

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, __: GetCoreSchemaHandler) -> CoreSchema:
        """Accept the object itself, and nothing else."""
        return core_schema.is_instance_schema(cls, serialization=core_schema.to_string_ser_schema())


NOT_SET: Final = NotSet()
