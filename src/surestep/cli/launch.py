"""Start a command in several processes on this machine; strip the arguments of launchers."""

from surestep.base.errors import ConfigError
from surestep.engine.distributed.launcher_env import BY_NPROC, NPROC, LaunchInfo, read_launched
from surestep.engine.step.gc import import_without_collecting

_FOLDERS = ("--run", "--run-folder")  # what names the folder that a restart resumes


def launch(processes: int, words: list[str]) -> int:
    """Start a command in several processes; return the exit code.

    Raises:
        ConfigError: a launcher already started this process, or --nproc is below 1 or given twice.
    """
    if processes < 1:
        raise ConfigError(f"{NPROC} {processes} is not a number of processes. Use 1 or more.")
    count = sum(word == NPROC or word.startswith(f"{NPROC}=") for word in words)
    if count > 1:
        raise ConfigError(f"{NPROC} is given {count} times. Pass it once: {NPROC} {processes}.")
    if read_launched().size > 1:
        raise ConfigError(
            f"{NPROC} {processes}, but {read_launched().launcher} already started several "
            f"processes. Leave {NPROC} out."
        )
    with import_without_collecting():  # here, since `surestep --help` needs no torch
        from surestep.trainer.launch import launch_ranks

    has_folder = words[0] == "resume" or any(word.split("=")[0] in _FOLDERS for word in words)
    return launch_ranks("surestep", strip_nproc(words), processes, can_resume=has_folder)


def read_launch() -> LaunchInfo:
    """Return what a launcher set for this process; one process if that is incomplete."""
    try:
        return read_launched()
    except ConfigError:  # a command that needs ranks explains it
        return LaunchInfo()


def strip_launcher_args(words: list[str]) -> list[str]:
    """Return a command line without the arguments that a launcher put before the command.

    deepspeed adds --local_rank=0, and older torch launchers --local-rank=0; the environment has
    the rank too. On Python 3.13 the -- that separates torchrun's options is passed on.
    """
    first = words[0] if words else ""
    if first == "--" or first.startswith(("--local_rank=", "--local-rank=")):
        return strip_launcher_args(words[1:])
    return words


def strip_nproc(words: list[str]) -> list[str]:
    """Return a command line without `--nproc N` and `--nproc=N`."""
    kept: list[str] = []
    skip = False
    for word in words:
        if not skip and not word.startswith(f"{NPROC}="):
            kept += [] if word == NPROC else [word]
        skip = word == NPROC and not skip
    return kept


def original_argv(words: list[str]) -> list[str]:
    """Return a command line as it was typed, with the --nproc that started this process."""
    launched = read_launched()
    return [*words, NPROC, str(launched.size)] if launched.launcher == BY_NPROC else words
