"""The value of an option that is not set. None is a different value: it means off."""

from typing import Any, Final, Literal, Self

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


class NotSet:
    """Type of NOT_SET, the value of an option that is not set. surestep then chooses it."""

    __slots__ = ()
    _one: "NotSet | None" = None

    def __new__(cls) -> Self:
        """Return the single instance, also when it is copied or unpickled."""
        if cls._one is None:
            cls._one = super().__new__(cls)
        assert isinstance(cls._one, cls)
        return cls._one

    def __bool__(self) -> Literal[False]:
        """Return False, so that `config.batch_size or 64` works."""
        return False

    def __repr__(self) -> str:
        """Return its name."""
        return "NOT_SET"

    def __reduce__(self) -> tuple[type["NotSet"], tuple[()]]:
        """Pickle it as a call that returns the single instance."""
        return NotSet, ()

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, __: GetCoreSchemaHandler) -> CoreSchema:
        """Accept only the instance itself."""
        return core_schema.is_instance_schema(cls, serialization=core_schema.to_string_ser_schema())


NOT_SET: Final = NotSet()
