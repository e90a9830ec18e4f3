"""The shell command at the end of a run: --notify, or `notify` of the user's settings.

It is what the user typed on this machine, and never an option of the Config: files that come with a
run, a recipe or a study cannot name a command. The facts of the run are in its environment, and are
not part of its text, so a name cannot add a command either.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from surestep.base.errors import ConfigError, suggest_names
from surestep.base.exit_codes import DONE, FAILED, INTERRUPTED, STOPPED
from surestep.base.paths import is_address, working_directory
from surestep.base.text import escape_control_chars, one_line, print_escaped
from surestep.cli.guard import Outcome, run_guarded
from surestep.cli.launch import read_launch
from surestep.engine.distributed.stop_signals import StopSignals
from surestep.record.progress import read_progress
from surestep.record.run import Run

# torchrun and Slurm kill a process 30 s after SIGTERM, and the save takes a part of them.
LIMIT_S = 10.0
NO_COMMAND = "none"
FACTS = (
    *("COMMAND", "RUN", "STATUS", "REASON", "EXIT_CODE", "STEP", "TOTAL_STEPS"),
    *("METRIC", "BEST", "BEST_STEP", "TRIALS"),
)
_POLL_S = 0.02
_EXAMPLE = "'notify-send \"$SURESTEP_STATUS\"'"
_LONGEST = 4000  # characters of a fact; the system limits the environment
_NAME = re.compile(r"[\w.+/][\w.+/-]*", re.ASCII)  # words that mean nothing else to the shell
_STATES = {DONE: "finished", STOPPED: "stopped", INTERRUPTED: "stopped"}


@dataclass
class NotifiedCommand:
    """Runs a command of surestep, and then the shell command that notifies of its end.

    Attributes:
        name: of the command of surestep.
        shell: the shell command; "" runs none.
        folder: of the run or the study, or its address; "" as long as it is not known.
        describe: returns more facts, or other ones, by their names in `FACTS`.
        start: the working directory in which the shell command was typed.
    """

    name: str
    shell: str
    folder: str | Path = ""
    describe: Callable[[], Mapping[str, object]] = dict
    start: str | None = field(default_factory=working_directory)

    def follow(self, run: Run) -> None:
        """Get the facts from a run that is opened."""
        self.folder, self.describe = run.path, partial(describe_run, run)

    def run(self, run: Callable[[], int]) -> int:
        """Run a command of surestep; return its exit code, whatever the shell command does."""
        try:
            outcome = run_guarded(run, self.name)
        except SystemExit as left:  # of a recipe
            code = DONE if left.code is None else left.code
            self._notify(Outcome(code if isinstance(code, int) else FAILED, "SystemExit"))
            raise
        self._notify(outcome)
        return outcome.code

    def _notify(self, outcome: Outcome) -> None:
        """Run the shell command; a signal that arrives meanwhile ends it, and nothing else."""
        if not self.shell:
            return
        with StopSignals(lambda name: None) as stops:
            environment = {**os.environ, **self._list_facts(outcome)}
            problem = run_shell(self.shell, environment, self.start, stops)
        if problem:
            print_escaped(f"The notification failed: {problem}.", sys.stderr)

    def _list_facts(self, outcome: Outcome) -> dict[str, str]:
        """Return the facts as variables of the environment."""
        facts: dict[str, object] = {
            "STATUS": _STATES.get(outcome.code, "failed"),
            "REASON": outcome.reason,
        }
        try:
            described = self.describe()
        except Exception as error:  # of any file of the run; the command runs all the same
            kind, described = type(error).__name__, {}
            print_escaped(f"The notification lacks facts: {kind}: {error}", sys.stderr)
        facts = {**described, **facts} if outcome.is_error else {**facts, **described}
        facts |= {"RUN": self._locate(), "COMMAND": self.name, "EXIT_CODE": outcome.code}
        return {f"SURESTEP_{name}": _as_text(name, facts.get(name)) for name in FACTS}

    def _locate(self) -> str:
        """Return the full path of the folder, or its address; "" if it is not known."""
        folder = os.fspath(self.folder)
        is_path = folder and not is_address(folder)
        return os.path.join(self.start or "", folder) if is_path else folder


def _as_text(name: str, value: object) -> str:
    """Return a fact for the environment; a path is unchanged, and what is not known is empty."""
    if name == "RUN" or value is None:
        return str(value or "")
    text = escape_control_chars(str(value)) if name == "REASON" else one_line(str(value))
    return text[:_LONGEST]


def run_shell(
    command: str, environment: Mapping[str, str], folder: str | None, stops: StopSignals
) -> str:
    """Run a command of the shell, with its output on stderr; return why it failed, or "".

    Args:
        command: in the language of the shell.
        environment: its variables.
        folder: its working directory.
        stops: a signal ends the command.
    """
    try:
        process = subprocess.Popen(
            command,
            shell=True,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=2,
            start_new_session=True,  # Ctrl-C and the end of a terminal are for surestep alone
        )
    except (OSError, ValueError) as error:
        return f"its command could not be started: {error}"
    end = time.monotonic() + LIMIT_S
    while process.poll() is None:
        if stops.received or time.monotonic() > end:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            cause = f"by {stops.received[0]}" if stops.received else f"after {LIMIT_S:g} s"
            return f"its command was ended {cause}"
        time.sleep(_POLL_S)
    if process.returncode < 0:
        return f"its command was killed by signal {-process.returncode}"
    return f"its command ended with exit code {process.returncode}" if process.returncode else ""


def describe_run(run: Run) -> dict[str, object]:
    """Return the facts of a run that has ended."""
    status = run.status
    found = read_progress(run.path, run.config, status)
    has_ended = found.state in ("finished", "stopped", "failed")  # and its end could be written
    return {
        **({"STATUS": found.state, "REASON": status.get("reason")} if has_ended else {}),
        **{"STEP": found.step, "TOTAL_STEPS": found.total_steps},
        **{"METRIC": found.metric, "BEST": found.best, "BEST_STEP": found.best_step},
    }


def choose_command(typed: str | None) -> str:
    """Return the shell command to run at the end: the typed one, or that of the settings.

    Returns:
        The command; "" for none, and on all ranks but the first.

    Raises:
        ConfigError: it is empty, or the typed one cannot be run, or the settings cannot be read.
    """
    if read_launch().rank > 0 or typed == NO_COMMAND:
        return ""
    if typed is not None:
        _require_text(typed, f"--notify has no command. Write --notify {_EXAMPLE}")
        if missing := _find_missing(typed):
            raise ConfigError(f"--notify: {missing} Check the name, or write its full path.")
        return typed
    path = _locate_settings()
    command = "" if path is None else _read_settings(path)
    if missing := _find_missing(command):  # on this machine; others may share the home folder
        print_escaped(f"{path}: {missing} The end of this run is not notified.", sys.stderr)
        return ""
    return command


def _require_text(command: str, message: str) -> None:
    if not command.strip():
        raise ConfigError(message)


def _find_missing(command: str) -> str:
    """Return a sentence if the shell does not find the first word of a command; else ""."""
    word = (command.split() or [""])[0]
    if not _NAME.fullmatch(word):
        return ""
    found = shutil.which(word) is not None
    if not found and "/" not in word:  # it may be one of the shell's own
        asked = ["/bin/sh", "-c", 'command -v "$1"', "sh", word]
        found = not subprocess.run(asked, stdout=subprocess.DEVNULL, check=False).returncode
    return "" if found else f"there is no command {word!r} that can be run."


def _locate_settings() -> Path | None:
    """Return the file of the user's settings; None if there is none.

    It is never looked for in the working directory, which may have been received.
    """
    base = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config")
    with suppress(RuntimeError):  # the user has no home folder
        base = base.expanduser()
    path = base / "surestep" / "config.toml"
    return path if base.is_absolute() and os.path.lexists(path) else None


def _read_settings(path: Path) -> str:
    """Return the command of the settings; "" if they have none.

    Raises:
        ConfigError: they cannot be read, or have something else.
    """
    how = f"Write: notify = {_EXAMPLE}"
    try:
        settings: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not text: {error.reason}.") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}. {how}") from error
    for key in settings:
        if key != "notify":
            raise ConfigError(f"{path} has the key {key!r}. {suggest_names(key, ['notify'])}")
    command = settings.get("notify")
    if command is None:
        return ""
    if not isinstance(command, str):
        raise ConfigError(f"{path} has notify = {command!r}, which is not a command. {how}")
    _require_text(command, f"{path} has no command. {how}")
    return command
