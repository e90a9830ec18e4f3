"""The result of a proof: a row for each law and check."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["holds", "fails", "not tested", "does not apply", "ignored"]


@dataclass(frozen=True)
class Row:
    """What is known of a law or check.

    Attributes:
        law: "law 2", or "check".
        name: such as "resuming".
        status: "not tested" if it could not be, "ignored" if it fails and this is known.
        text: what was compared, or why not; of one that fails, the first value that differs.
        cause: what usually causes this, of one that fails.
        mend: what to change.
        step: the first that differs.
        kind: of the value that differs, such as "outputs".
        value: its name.
        source: the module or line of code that computed it.
        seconds: that it took.
    """

    law: str
    name: str
    status: Status
    text: str
    cause: str = ""
    mend: str = ""
    step: int | None = None
    kind: str = ""
    value: str = ""
    source: str = ""
    seconds: float = 0.0

    @property
    def title(self) -> str:
        """The law with its name."""
        return f"{self.law}: {self.name}"


@dataclass(frozen=True)
class Proof:
    """What `prove_laws` found.

    Attributes:
        rows: in order.
        steps: that were compared in each run.
        samples: of an epoch of these runs; None if it is not known.
        seconds: that all of it took.
        versions: of surestep, torch and Python.
        stopped: why it ended early; "" if it did not.
    """

    rows: Sequence[Row] = ()
    steps: int = 0
    samples: int | None = None
    seconds: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)
    stopped: str = ""

    @property
    def failed(self) -> list[Row]:
        """The rows that fail."""
        return [row for row in self.rows if row.status == "fails"]

    def as_json(self) -> dict[str, Any]:
        """Return it as values of JSON."""
        return asdict(self)
