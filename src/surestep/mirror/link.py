"""mirror.json in a run folder: which run it is, its mirror, and what only the mirror has.

The file of this name in a mirror has the run and its writer. A copy of a mirror that another tool
made is a run folder once a run is opened in it, and until then has that file.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from surestep.base.errors import RunError
from surestep.base.paths import is_address, restore_address
from surestep.record.io import read_json, write_json
from surestep.record.schemas import MIRROR, MIRRORED

FILE = "mirror.json"


@dataclass(frozen=True)
class MirrorLink:
    """How a run folder belongs to a mirror.

    Attributes:
        id: of the run, the same in the run folder and in the mirror.
        address: of the mirror.
        elsewhere: names of checkpoints that only the mirror has on purpose.
        damaged: names of checkpoints whose files in the mirror are not what was written.
        abandoned: checkpoints that a rollback deleted in the run folder, but not yet in the mirror:
            the SHA-256 of the manifest of each, by its name.
        fetching: the run was not fetched completely, so its records can lack steps.
    """

    id: str
    address: str
    elsewhere: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    abandoned: Mapping[str, str] = field(default_factory=dict)
    fetching: bool = False

    def write(self, folder: Path) -> None:
        """Write the file into a run folder."""
        write_json(folder / FILE, asdict(self))


def read_link(folder: Path) -> MirrorLink | None:
    """Return the link of a run folder, or of a copy of its mirror; None if it has none.

    Raises:
        RunError: the file cannot be read.
    """
    if not (folder / FILE).exists():
        return None
    if (copied := read_copied(folder)) is not None:
        return MirrorLink(copied["id"], copied.get("address", ""))
    found = read_json(folder / FILE, MIRRORED)
    return MirrorLink(
        id=found["id"],
        address=found["address"],
        elsewhere=tuple(found["elsewhere"]),
        damaged=tuple(found["damaged"]),
        abandoned=found.get("abandoned", {}),
        fetching=found["fetching"],
    )


def read_copied(folder: Path) -> dict[str, Any] | None:
    """Return the mirror.json of a mirror or of its copy; None if a folder has another one, or none.

    Only that of a mirror has a writer.
    """
    with suppress(RunError):
        return dict(read_json(folder / FILE, MIRROR))
    return None


def find_address(run: str | Path) -> str | None:
    """Return the address of a mirror that is given by it or by a path; None for other folders.

    A copy of a mirror has the address of the mirror, which is elsewhere.
    """
    if is_address(run):
        return restore_address(run)
    folder = Path(run)
    copied = read_copied(folder) or {}
    scheme, _, path = copied.get("address", "").rpartition("://")
    is_here = scheme in ("", "file", "local") and Path(path).resolve() == folder.resolve()
    return f"file://{folder.resolve()}" if path and is_here else None


def make_link(folder: Path, address: str, run_id: str | None = None) -> MirrorLink:
    """Return the link of a run folder to a mirror, with the id that it has already, if any."""
    known = read_link(folder)
    if known is not None and known.address == address:
        return known if run_id is None else replace(known, id=run_id)
    new = run_id or (known.id if known is not None else uuid4().hex)
    return MirrorLink(new, address, fetching=known is not None and known.fetching)
