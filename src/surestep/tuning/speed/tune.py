"""Tune a recipe: open its folder, climb the ladder, and write what was found."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from surestep.base.errors import ConfigError, Preempted, RunError, suggest_names
from surestep.engine.distributed.stop_signals import CTRL_C
from surestep.recipes.find import recipe_argument
from surestep.recipes.load import RecipeCall
from surestep.record.io import os_error_hint
from surestep.record.lock import RunLock
from surestep.tuning.options import list_typed_options, make_folder, remove_new
from surestep.tuning.speed.knob import Knob
from surestep.tuning.speed.ladder import Ladder
from surestep.tuning.speed.list_knobs import list_knobs
from surestep.tuning.speed.measurer import ProcessMeasurer
from surestep.tuning.speed.measuring_process import MeasuringFailed
from surestep.tuning.speed.result import TuneResult
from surestep.tuning.speed.write import RESULT, write_config, write_page, write_result

FOLDER = "tunes"
_LOG = "log.txt"
_HANGS_SHARE, _HANGS_S = 0.2, 30.0  # of the whole time; but not less


@dataclass(frozen=True)
class TuneOptions:
    """What `run_tune` does.

    Attributes:
        minutes: that it may take.
        out: folder of the result; None makes one.
        knobs: names of those to try; empty is all.
        allows_numbers: knobs that change the numbers may be kept.
        nproc: training processes.
    """

    minutes: float = 10.0
    out: Path | None = None
    knobs: Sequence[str] = ()
    allows_numbers: bool = False
    nproc: int = 1

    def choose_knobs(self) -> dict[str, Knob]:
        """Return the knobs to try.

        Raises:
            ConfigError: one does not exist.
        """
        every = list_knobs()
        for name in self.knobs:
            if name not in every:
                raise ConfigError(f"There is no knob {name!r}. {suggest_names(name, every)}")
        return {name: every[name] for name in dict.fromkeys(self.knobs or every)}


def run_tune(call: RecipeCall, options: TuneOptions) -> tuple[TuneResult, Path]:
    """Tune a recipe; return what was found, and its folder.

    A signal ends it; `stopped` of the result says which, and the files have what is known so far.

    Raises:
        ConfigError, RecipeError, TaskError: an option or the recipe is invalid.
        RunError: the folder cannot be written, or the recipe cannot be measured.
    """
    knobs = options.choose_knobs()
    result = TuneResult(call.recipe.name, list_typed_options(call), load=_read_load())
    recipe = recipe_argument(call.origin.recipe)
    folder, lock = _open_folder(options.out, call.recipe.name)
    seconds = 60 * options.minutes
    limit_s = max(_HANGS_S, _HANGS_SHARE * seconds)
    measurer = ProcessMeasurer(recipe, folder / _LOG, options.nproc, limit_s)
    try:
        write_result(folder, result)
        ladder = Ladder(
            measurer,
            knobs,
            result,
            seconds=seconds,
            allows_numbers=options.allows_numbers,
            save=lambda: write_result(folder, result),
        )
        ladder.climb()
    except MeasuringFailed as failed:
        if failed.kind and options.out is None:  # the message has all that the folder has
            remove_new(folder)
        raise failed.as_error() from None
    except KeyboardInterrupt:
        result.stopped = CTRL_C
    except Preempted as stopped:
        result.stopped = stopped.reason
    finally:
        measurer.close()
        lock.release()
    write_result(folder, result)
    write_config(folder, result, recipe)
    write_page(folder, result)
    return result, folder


def _read_load() -> float | None:
    """Return how many processes per core wanted to run in the last minute, if the system knows."""
    if not hasattr(os, "getloadavg"):
        return None
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def _open_folder(out: Path | None, name: str) -> tuple[Path, RunLock]:
    """Make and lock the folder of a tuning.

    Raises:
        RunError: it cannot be created, is in use, or has a tuning already.
    """
    if out is None:
        folder = make_folder(name, FOLDER, "--out")
        return folder, RunLock(folder, "--out")
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = RunLock(out, "--out")
    except OSError as error:
        hint = os_error_hint(error, "folder", " with --out")
        raise RunError(f"{out} cannot be written: {error.strerror}. {hint}") from error
    if (out / RESULT).exists():
        lock.release()
        raise RunError(
            f"{out} has a tuning already. Choose another folder with --out, or delete this one."
        )
    return out, lock
