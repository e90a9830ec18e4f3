"""`surestep track replay`."""

from typing import Annotated

import tyro

from surestep.base.errors import RunError, SurestepError
from surestep.base.paths import require_local_path
from surestep.base.text import print_escaped
from surestep.cli.main import list_commands, reject_command
from surestep.cli.parse import command
from surestep.config.config import Config
from surestep.record.lock import is_locked
from surestep.record.run import Run

_COMMANDS = {"replay": "replay RUN --to TRACKER: send what a run recorded and the tracker lacks"}


@command("track replay")
def replay(
    folder: Annotated[str, tyro.conf.arg(metavar="RUN")], /, *, to: str, all: bool = False
) -> int:
    """Send what a run recorded to a tracker, from where the last delivery ended.

    Args:
        folder: Run folder.
        to: Name of the tracker, such as tensorboard.
        all: Send everything again.
    """
    Config.from_options({"logging.trackers": to})  # checks that there is such a tracker
    path = Run(require_local_path(folder)).path
    if is_locked(path):
        raise RunError(f"{path} is running, and sends its records itself. Wait until it ends.")
    from surestep.tracking.follower import Delivery
    from surestep.tracking.registry import tracker_class

    delivery = Delivery(path, tracker_class(to)(), from_start=all)
    before = delivery.offset
    try:
        delivery.deliver()
    except SurestepError:
        raise
    except Exception as error:  # whatever the tracker's library raises
        raise RunError(f"{to} failed: {type(error).__name__}: {error}") from error
    finally:
        delivery.close()
    sent = delivery.offset - before
    print_escaped(f"{to} got {sent:,} bytes of events." if sent else f"{to} has everything.")
    return 0


def run(words: list[str]) -> int:
    """Run one of the commands."""
    command, *rest = words or ["--help"]
    if command in ("-h", "--help"):
        print(f"usage: surestep track COMMAND ...\n\n{list_commands(_COMMANDS)}")
        return 0
    if command not in _COMMANDS:
        return reject_command("surestep track", command, _COMMANDS)
    return replay(rest)
