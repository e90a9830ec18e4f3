"""Open a run to read its records, in a folder or in a mirror."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from surestep.base.paths import is_address
from surestep.record.run import Run


@contextmanager
def open_run(name: str) -> Iterator[Run]:
    """Yield a run; of one in a mirror, its records are read into a temporary folder."""
    if not is_address(name):
        yield Run(Path(name))
        return
    from surestep.cli.mirrored import open_mirrored  # takes long to import
    from surestep.mirror.outline import write_records

    with open_mirrored(name) as mirrored:
        write_records(mirrored.store, mirrored.run.path)
        yield mirrored.run
