"""How the attributes of a ConfigGroup are annotated: what they hold, and what they can be set to.

`lr: Number[Positive]` holds a number or NOT_SET, and can also be set to "1e-3" or None. For
pydantic, the annotation is the type that the attribute holds. For type checkers it is a descriptor:
the argument of the same name then has the type that the descriptor can be set to.
"""

from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    SupportsFloat,
    TypeAlias,
    TypeVar,
)

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from surestep.config.not_set import NotSet

Stored = TypeVar("Stored")
Accepted = TypeVar("Accepted")
Off: TypeAlias = Literal[False, 0, "off", "none", "no", "never"]
Real: TypeAlias = SupportsFloat | str  # also a number of numpy or torch, "1k" and "10%"

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    import torch

    class Option(Generic[Stored, Accepted]):
        """An option that can also be set to other types of values."""

        def __get__(self, group: object, kind: object = None) -> Stored | NotSet: ...
        def __set__(self, group: object, value: Stored | Accepted | NotSet | None) -> None: ...

    class Group(Generic[Stored, Accepted]):
        """A group of options; it can also be set to a dict, or the value of its main option."""

        def __get__(self, group: object, kind: object = None) -> Stored: ...
        def __set__(
            self, group: object, value: Stored | Accepted | Mapping[str, Any] | None
        ) -> None: ...

    Word = Option[Stored, None]
    Flag = Option[bool, int | str]
    Number = Option[Stored, Real]
    Several = Option[Stored, Sequence[float] | Sequence[str] | str]
    Interval = Option[Stored, Real]
    ClockInterval = Option[Stored, Real | timedelta]
    AnyDevice: TypeAlias = int | torch.device
    AnyDtype: TypeAlias = str | int | torch.dtype
else:

    class Option:
        """An option: the type that it holds, or NOT_SET."""

        def __class_getitem__(cls, types: Any) -> Any:
            return (types[0] if isinstance(types, tuple) else types) | NotSet

    class Group:
        """A group of options: its class.

        A ConfigGroup makes its groups before pydantic sees them. The schema of the Config therefore
        contains none of theirs, each of which is built when its group is first set.
        """

        def __class_getitem__(cls, types: Any) -> Any:
            return Annotated[types[0], cls]

        @classmethod
        def __get_pydantic_core_schema__(cls, group: Any, _: GetCoreSchemaHandler) -> CoreSchema:
            return core_schema.is_instance_schema(group)

    Word = Number = Several = Interval = ClockInterval = Option
    Flag = Option[bool]
    AnyDevice = AnyDtype = Any
