"""What a Plan chooses of the template code."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Choices:
    """What is chosen of the template code.

    Attributes:
        flags: that are on in its marks.
        constants: the values of its constants.
        renamed: what to write for a name, such as that of the chosen curve for `curve`.
        code: source beside the template code, such as a function that makes the optimizer.
    """

    flags: Set[str] = frozenset()
    constants: Mapping[str, Any] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    code: tuple[str, ...] = ()

    def __or__(self, other: "Choices") -> "Choices":
        return Choices(
            self.flags | other.flags,
            {**self.constants, **other.constants},
            {**self.renamed, **other.renamed},
            self.code + other.code,
        )


def flags_of(**claims: object) -> Set[str]:
    """Return the flags whose claims hold."""
    return frozenset(name for name, holds in claims.items() if holds)
