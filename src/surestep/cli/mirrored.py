"""Read a run that is given by the address of its mirror."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from surestep.base.errors import ConfigError, RunError, SurestepError
from surestep.base.paths import check_mirror_address, restore_address
from surestep.base.secrets import describe_error
from surestep.base.text import print_escaped
from surestep.mirror.link import read_copied, read_link
from surestep.mirror.open import explain, open_store
from surestep.mirror.outline import open_outline, require_run
from surestep.mirror.store import Store
from surestep.record.run import Run


class MirroredRun(NamedTuple):
    """A run in a mirror; `run` is its outline in a temporary folder, without tensors."""

    store: Store
    run: Run

    def shown(self, path: Path) -> str:
        """Return a path in the outline as its address in the mirror."""
        return f"{self.store.address}/{path.relative_to(self.run.path).as_posix()}"


@contextmanager
def use_mirror(address: str) -> Iterator[Store]:
    """Yield the store of a mirror; errors of its driver are raised as those of a run.

    Raises:
        ConfigError: the address is invalid, or there is no driver for it.
        RunError: the mirror cannot be reached or rejects this process.
    """
    try:
        store = open_store(check_mirror_address(restore_address(address)))
    except ValueError as error:
        raise ConfigError(f"The mirror {error}.") from None
    _check_not_run_folder(store)
    try:
        with store.announce_silence(partial(print_escaped, file=sys.stderr)):
            yield store
    except SurestepError:
        raise
    except Exception as error:  # whatever the driver raises
        text = f"{store.address} cannot be read: {describe_error(error)}."
        raise (explain(store.address, error) or RunError(text)) from None


def _check_not_run_folder(store: Store) -> None:
    """Reject the folder of a run that has a mirror: its own mirror.json names that mirror."""
    if store.local_path is None:
        return
    is_mirror = read_copied(store.local_path) is not None
    link = None if is_mirror else read_link(store.local_path)
    if link is not None:
        raise RunError(
            f"{store.local_path} is a run folder, not a mirror. Its mirror is {link.address}"
        )


@contextmanager
def open_mirrored(address: str) -> Iterator[MirroredRun]:
    """Yield the run at an address; no tensor is read. The exceptions are those of `use_mirror`."""
    with use_mirror(address) as store, open_outline(store, require_run(store)) as folder:
        try:
            yield MirroredRun(store, Run(folder))
        except SurestepError as error:
            error.args = tuple(text.replace(str(folder), store.address) for text in error.args)
            raise
