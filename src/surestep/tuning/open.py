"""Open the study in a folder, to work on it or to read it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from surestep.base.errors import ConfigError, SurestepError
from surestep.base.typed_targets import remember_target, was_typed
from surestep.tuning.methods import PRUNERS, SAMPLERS, complete_method
from surestep.tuning.samplers import check_methods
from surestep.tuning.settings import STUDY_FILE, StudySettings, read_settings, record_settings
from surestep.tuning.storage import open_storage, without_password
from surestep.tuning.study import SearchStudy


def open_study(folder: Path, settings: StudySettings, storage: str | None = None) -> SearchStudy:
    """Create a study, or open the one in a folder, whose settings must be the same.

    Args:
        folder: of the study.
        settings: as the command sets them.
        storage: URL of a database with its password; None takes `settings.storage`.

    Raises:
        ConfigError: a setting is invalid, or differs from the recorded one.
        RunError: the folder or the storage cannot be opened.
    """
    url = storage or settings.storage
    settings = replace(settings, storage=without_password(url))
    check_methods(settings)
    settings = replace(
        settings,
        sampler=complete_method("sampler", settings.sampler, SAMPLERS),
        pruner=complete_method("pruner", settings.pruner, PRUNERS),
    )
    is_new = not (folder / STUDY_FILE).exists()
    if not is_new:
        _require_typed(folder, read_settings(folder), storage)
    recorded = record_settings(folder, settings)
    for target in (recorded.storage, recorded.fixed.get("checkpoint.mirror")):
        if target is not None:
            remember_target(recorded.name, str(target))
    try:
        return SearchStudy(folder, recorded, open_storage(folder, url), create=True)
    except SurestepError:
        if is_new:  # the corrected command would differ from it
            (folder / STUDY_FILE).unlink(missing_ok=True)
        raise


def read_study(folder: Path, storage: str | None = None) -> SearchStudy:
    """Open the study in a folder as it is; nothing is created.

    Anyone may have written the folder, so its database is used only if the user typed it.

    Args:
        folder: of the study.
        storage: URL of its database with the password, if it needs one.

    Raises:
        ConfigError: `storage` differs from the recorded database, which was not typed here either.
        RunError: there is no study, or it cannot be opened.
    """
    settings = read_settings(folder)
    if storage is not None and without_password(storage) != settings.storage:
        raise ConfigError(
            f"{folder} stores its trials in {settings.storage or 'study.log'}, and --storage is "
            f"{without_password(storage)}. Leave --storage out, or pass the same one."
        )
    _require_typed(folder, settings, storage)
    opened = open_storage(folder, storage or settings.storage, create=False)
    return SearchStudy(folder, settings, opened, create=False)


def _require_typed(folder: Path, settings: StudySettings, storage: str | None) -> None:
    """Reject the recorded database of a study if the user did not type it, now or earlier.

    Raises:
        ConfigError: it was not typed on this machine.
    """
    recorded = settings.storage
    if storage is None and recorded is not None and not was_typed(settings.name, recorded):
        raise ConfigError(
            f"{folder} names the database {recorded}, which was not typed on this machine, and the "
            f"folder may come from anyone. To use it, pass --storage {shlex.quote(recorded)}"
        )
