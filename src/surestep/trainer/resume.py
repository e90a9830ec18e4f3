"""Whether the run in a folder goes on, from which checkpoint, and with which changes."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from surestep.base.errors import CheckpointError, ConfigError, RunError, suggest_names
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import Progress, StepCounts
from surestep.record.checkpoint.errors import checkpoint_error
from surestep.record.checkpoint.manifest import RECORD
from surestep.record.checkpoint.reader import CheckpointReader, open_checkpoint
from surestep.record.io import read_json
from surestep.record.run_writer import RunWriter
from surestep.record.schemas import PLAN
from surestep.trainer.config_diff import ConfigChange, apply_allow, check_allow, compare, table
from surestep.trainer.extend import compare_length
from surestep.trainer.fork import RunParent, check_branch, find_branch, is_fork_of
from surestep.trainer.planning import PreparedTask, TaskOrigin
from surestep.trainer.run_identity import run_identity

Resume = Literal["auto", "never", "must"]


@dataclass(frozen=True)
class ResumeRequest:
    """What was said about a run that is there already.

    Attributes:
        resume: whether to go on.
        allow: names of what may differ.
        from_: a checkpoint of another run that a new one starts from.
    """

    resume: Resume = "auto"
    allow: tuple[str, ...] = ()
    from_: str | None = None


@dataclass(frozen=True)
class ResumeDecision:
    """How a run goes on.

    Attributes:
        asked: what the run is asked to be, for its folder.
        checkpoint: where it goes on; None starts anew.
        finished: there is nothing left to do.
        changes: what differs from before.
        branch: the other run that it starts from now.
        other_metric: the best so far was told by another metric, or the other way round.
    """

    asked: dict[str, Any]
    checkpoint: CheckpointReader | None = None
    finished: bool = False
    changes: list[ConfigChange] = field(default_factory=list)
    branch: RunParent | None = None
    other_metric: bool = False

    @property
    def judges_anew(self) -> bool:
        """Whether the best so far counts no more: it lies elsewhere, or is another metric's."""
        return self.branch is not None or self.other_metric

    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """Return what the events are to say of it, before the first step."""
        found: list[tuple[str, dict[str, Any]]] = []
        if self.branch is not None:
            found.append(("branch", self.branch.as_json()))
        if self.changes:
            rows = [each.as_json() for each in self.changes]
            found.append(("changes", {"changes": rows}))
        return found


_RESUME = (
    "'auto', the default, resumes the run in the folder if there is one; 'must' raises an error if "
    "there is none, 'never' if there is one."
)


def _resume_instead(resume: Any) -> str:
    """Say what to write instead of a value that is not one of the words."""
    if resume is None:
        return "Leave it out: the default, 'auto', resumes the run in the folder if there is one."
    if resume is False:
        return f"Write resume='never'. {_RESUME}"
    if isinstance(resume, os.PathLike) or (isinstance(resume, str) and os.sep in resume):
        return f"A run is resumed by its folder: write run={os.fspath(resume)!r}."
    return suggest_names(resume, get_args(Resume)) if isinstance(resume, str) else _RESUME


def parse_resume_request(resume: Resume, allow: Sequence[str], from_: str | None) -> ResumeRequest:
    """Check what was said.

    Raises:
        ConfigError: a word that is not known.
    """
    if resume not in get_args(Resume):
        raise ConfigError(f"resume={resume!r} is not known. {_resume_instead(resume)}")
    check_allow(allow)
    if from_ is not None:
        check_branch(from_)
    return ResumeRequest(resume, tuple(allow), from_)


def decide_resume(
    recorder: RunWriter, origin: TaskOrigin, planned: PreparedTask, said: ResumeRequest
) -> ResumeDecision:
    """Decide how the run in the folder goes on.

    Raises:
        RunError: it may not: the folder holds another run, or one that differs too much.
        CheckpointError: there is none to go on from, and there must be.
    """
    if recorder.published and said.resume == "never":
        raise RunError(
            f"{recorder.folder} holds a run already, and resume is 'never'. Choose another "
            "folder with --run (run= in Python)."
        )
    asked = run_identity(origin, planned)
    checkpoint = (
        recorder.newest_valid(fits_run(recorder, planned.plan)) if recorder.published else None
    )
    if said.resume == "must" and checkpoint is None:
        raise CheckpointError(
            f"{recorder.folder} has no checkpoint to go on from, and resume is 'must'."
        )
    before = recorder.run.config if recorder.published else {}
    _check_origin(recorder, before, said)
    asked["from"] = before.get("from")
    if checkpoint is not None:
        return _again(recorder, before, asked, planned, said)
    return _started(recorder, asked, planned, said)


def fits_run(recorder: RunWriter, plan: Plan) -> Callable[[CheckpointReader], None]:
    """Return what checks that a checkpoint's place can be one of this run.

    What is returned raises a DamagedError: for a position beyond an epoch of this plan and of the
    last, for steps that were taken without items, which are not taken, and for steps that are
    neither taken nor counted as skipped.
    """
    lengths = [_samples(plan.steps_per_epoch, plan.batch_size)]
    with suppress(RunError):  # it was killed before it had one
        before = read_json(recorder.folder / "plan.json", PLAN)
        lengths.append(_samples(before.get("steps_per_epoch"), before.get("batch_size")))

    def check(found: CheckpointReader) -> None:
        place, skipped = (
            Progress(**found.record["progress"]),
            StepCounts(**found.record["counts"]).skipped,
        )
        position = place.position
        if skipped != place.step - place.steps_taken:
            what = (
                f"counts has {skipped} skipped steps, and progress has {place.step} steps of which "
                f"{place.steps_taken} were taken"
            )
            raise checkpoint_error(found.path, RECORD, what)
        if place.steps_taken and not place.items:
            what = f"progress.items is 0 after {place.steps_taken} steps that were taken"
            raise checkpoint_error(found.path, RECORD, what)
        if all(length is not None and position > length for length in lengths):
            what = (
                f"progress.position is {position}, and an epoch has at most {lengths[-1]} samples"
            )
            raise checkpoint_error(found.path, RECORD, what)

    return check


def _samples(steps_per_epoch: int | None, batch_size: int | None) -> int | None:
    """Return more samples than an epoch has; None where that is not known."""
    if steps_per_epoch is None or batch_size is None:
        return None
    return (steps_per_epoch + 1) * batch_size  # the last batch may have been dropped


def newest(recorder: RunWriter) -> CheckpointReader | None:
    """Return the newest good checkpoint of the folder's run; None before the first was saved."""
    return recorder.newest_valid() if recorder.published else None


def is_finished(recorder: RunWriter) -> bool:
    """Say whether the folder holds a run that is done, and its last checkpoint is good.

    A run that never saved is not finished here: the model would keep its first weights.
    """
    if not recorder.published or recorder.run.status.get("status") != "finished":
        return False
    found = recorder.newest_valid()
    return found is not None and found.manifest.step >= recorder.run.status.get("step", 0)


def _check_origin(recorder: RunWriter, before: dict[str, Any], said: ResumeRequest) -> None:
    """Check that a run that is there comes from where it is said to come from."""
    if said.from_ is None or not recorder.published or is_fork_of(before.get("from"), said.from_):
        return
    known = before.get("from")
    really = f"comes from {known['run']}@{known['step']}" if known else "was started anew"
    raise RunError(
        f"{recorder.folder} holds a run already, which {really}, not from {said.from_}. Choose "
        "another folder with --run (run= in Python), or leave --from out to go on with it."
    )


def _again(
    recorder: RunWriter,
    before: dict[str, Any],
    asked: dict[str, Any],
    planned: PreparedTask,
    said: ResumeRequest,
) -> ResumeDecision:
    """Go on with the run that is there."""
    checkpoint, finished = newest(recorder), is_finished(recorder)
    place = _place(checkpoint)
    length = compare_length(before, planned, place)
    changes = [*([] if length is None else [length]), *compare(before, asked)]
    changes = apply_allow(changes, said.allow)
    bad = [each for each in changes if each.resume.effect in ("blocked", "incompatible")]
    if bad:
        raise RunError(
            f"{recorder.folder} holds a run with another config:\n"
            + "\n".join(table(changes))
            + f"\n{_what_to_type(bad)}"
        )
    if finished:  # nothing but another end makes it go on
        longer = length is not None and place.step < planned.plan.total_steps
        finished = not longer and not any(c.name.startswith("early_stop.") for c in changes)
    return ResumeDecision(
        asked, checkpoint, finished, changes, other_metric=_has_other_metric(changes)
    )


def _place(checkpoint: CheckpointReader | None) -> Progress:
    return Progress() if checkpoint is None else Progress(**checkpoint.record["progress"])


def _what_to_type(bad: list[ConfigChange]) -> str:
    folder = (
        "Choose another folder with --run (run= in Python), or go back to the config it was "
        "started with."
    )
    if any(each.resume.effect == "incompatible" for each in bad):
        return folder
    names = list(dict.fromkeys(each.name for each in bad))
    return (
        f"{folder} To go on all the same: --allow {','.join(names)} (allow={tuple(names)!r} in "
        "Python)."
    )


def _started(
    recorder: RunWriter, asked: dict[str, Any], planned: PreparedTask, said: ResumeRequest
) -> ResumeDecision:
    """Start a run: anew, or from a checkpoint of another."""
    known = asked["from"]
    text = said.from_ or (f"{known['run']}@{known['step']}" if known else None)
    if text is None:
        return ResumeDecision(asked)
    branch = find_branch(text)
    checkpoint = open_checkpoint(branch.saved.path)
    before, place = branch.run.config, _place(checkpoint)
    length = compare_length(before, planned, place)
    changes = [*([] if length is None else [length]), *compare(before, asked)]
    changes = apply_allow(changes, None)  # a folder of its own: nothing that is there is lost
    if any(each.resume.effect == "incompatible" for each in changes):
        raise RunError(f"{recorder.folder} cannot start from {text}:\n" + "\n".join(table(changes)))
    if place.step >= planned.plan.total_steps:
        raise RunError(
            f"{text} stands at step {place.step}, and the run would be over at step "
            f"{planned.plan.total_steps}. Say more: --epochs or --max-steps."
        )
    asked["from"] = branch.as_json()
    other = _has_other_metric(changes)
    return ResumeDecision(asked, checkpoint, changes=changes, branch=branch, other_metric=other)


def _has_other_metric(changes: list[ConfigChange]) -> bool:
    return any(each.name in ("validation.metric", "validation.mode") for each in changes)
