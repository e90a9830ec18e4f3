"""Whether the run in a folder resumes, from which checkpoint, and with which changes."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from surestep.base.errors import CheckpointError, ConfigError, RunError, suggest_names
from surestep.config.config import LENGTHS
from surestep.config.option import UNKNOWN
from surestep.engine.data.lengths import EPOCH_LENGTHS
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import Progress
from surestep.record.checkpoint.encoding import CALLBACK_STATES
from surestep.record.checkpoint.manifest import RECORD, checkpoint_error
from surestep.record.checkpoint.reader import CheckpointReader, check_record, open_checkpoint
from surestep.record.checkpoint_ref import find_checkpoint, is_checkpoint, split_name
from surestep.record.io import COPY_HINT, read_json
from surestep.record.run_writer import RunWriter
from surestep.record.schemas import PLAN, format_value
from surestep.trainer.config_diff import (
    FIRST_SAMPLES,
    SOME_SAMPLES,
    ConfigChange,
    apply_allow,
    check_allow,
    compare,
    table,
)
from surestep.trainer.planning import PreparedTask, TaskOrigin
from surestep.trainer.run_identity import run_identity

Resume = Literal["auto", "never", "must"]


@dataclass(frozen=True)
class ResumeDecision:
    """How a run starts or resumes.

    Attributes:
        identity: of the run from now on, for its folder, which rank 0 writes. Other ranks have its
            validation sets only.
        checkpoint: the checkpoint to load; None starts from scratch.
        finished: there are no steps left.
        changes: what differs from before, on rank 0.
        parent: the folder of another run whose checkpoint it starts from now.
        is_other_metric: the best so far is by a different metric or mode.
    """

    identity: dict[str, Any]
    checkpoint: CheckpointReader | None = None
    finished: bool = False
    changes: list[ConfigChange] = field(default_factory=list)
    parent: Path | None = None
    is_other_metric: bool = False

    @property
    def resets_best(self) -> bool:
        """Whether the best so far no longer counts."""
        return self.parent is not None or self.is_other_metric

    @property
    def loads_own_state(self) -> bool:
        """Whether the checkpoint to load is of this run."""
        return self.checkpoint is not None and self.parent is None


def check_resume_arguments(resume: Resume, allow: Sequence[str], from_: str | None) -> None:
    """Raise a ConfigError if an argument has an unknown value."""
    if resume not in get_args(Resume):
        raise ConfigError(
            f"resume={resume!r} is not 'auto', 'must' or 'never'. 'auto', the default, resumes the "
            "run in the folder if there is one; 'must' raises an error if there is none, 'never' "
            "if there is one. Pass the folder of the run as run='runs/mine'."
        )
    check_allow(allow)
    if from_ is not None:
        path, which = split_name(str(from_))
        if which is None and not is_checkpoint(path):
            raise ConfigError(
                f"{str(from_)!r} does not name a checkpoint. Pass RUN@STEP, RUN@best or RUN@last, "
                f"such as {path}@last."
            )


def decide_resume(
    recorder: RunWriter,
    origin: TaskOrigin,
    planned: PreparedTask,
    resume: Resume,
    allow: Sequence[str],
    from_: str | None,
) -> ResumeDecision:
    """Decide how the run in the folder resumes, or that a new one starts."""
    folder = recorder.folder
    if recorder.published and resume == "never":
        raise RunError(
            f"{folder} has a run already, and resume is 'never'. Choose a different folder with "
            "--run (run= in Python)."
        )
    identity = run_identity(origin, planned)
    checkpoint = None
    if recorder.published:
        checkpoint = recorder.newest_valid(_plausibility_check(recorder, planned.plan))
    if resume == "must" and checkpoint is None:
        raise CheckpointError(
            f"{folder} has no checkpoint to resume from, and resume is 'must'. To start a new run, "
            "use --resume auto (resume='auto' in Python); to resume another, pass its folder with "
            "--run (run= in Python)."
        )
    before = recorder.run.config if recorder.published else {}
    if recorder.published and from_ is not None:
        _check_parent(recorder, before.get("from"), from_)
    identity |= {name: before[name] for name in ("lr_find", "tuned") if name in before}
    identity["from"] = before.get("from")
    if checkpoint is not None:
        return _resume(recorder, checkpoint, before, identity, planned, allow)
    return _start(recorder, identity, planned, from_)


def _plausibility_check(recorder: RunWriter, plan: Plan) -> Callable[[CheckpointReader], None]:
    """Return a check that the counts and the position of a checkpoint can be those of this run."""
    lengths = [_samples(plan.steps_per_epoch, plan.batch_size)]
    with suppress(RunError):  # a run that was killed early has no plan
        before = read_json(recorder.folder / "plan.json", PLAN)
        lengths.append(_samples(before.get("steps_per_epoch"), before.get("batch_size")))

    def check(checkpoint: CheckpointReader) -> None:
        progress = Progress(**checkpoint.record["progress"])
        changes = checkpoint.record[CALLBACK_STATES].get(EPOCH_LENGTHS, {}).get("changes", ())
        if not changes and all(
            length is not None and progress.position > length for length in lengths
        ):
            problem = (
                f"progress.position is {progress.position}, and an epoch has at most "
                f"{lengths[-1]} samples"
            )
            raise checkpoint_error(checkpoint.path, RECORD, problem)
        check_record(checkpoint.path, checkpoint.record)

    return check


def _samples(steps_per_epoch: int | None, batch_size: int | None) -> int | None:
    """Return an upper bound of the samples of an epoch; None if it is not known."""
    if steps_per_epoch is None or batch_size is None:
        return None
    return (steps_per_epoch + 1) * batch_size  # the last batch may have been dropped


def _check_parent(recorder: RunWriter, parent: dict[str, Any] | None, from_: str) -> None:
    """Check that the run in the folder started from the checkpoint that `from_` names."""
    path, which = split_name(from_)
    if which is None:  # the folder of a checkpoint
        path, which = path.resolve().parent.parent, int(path.name.removeprefix("step-"))
    names = (parent["which"], str(parent["step"])) if parent is not None else ()
    if parent is not None and parent["run"] == str(path.resolve()) and str(which) in names:
        return
    actual = f"starts from {parent['run']}@{parent['step']}" if parent else "started from scratch"
    raise RunError(
        f"{recorder.folder} has a run already, which {actual}, not from {from_}. Choose a "
        "different folder with --run (run= in Python), or omit --from to resume it."
    )


def _resume(
    recorder: RunWriter,
    checkpoint: CheckpointReader,
    before: dict[str, Any],
    identity: dict[str, Any],
    planned: PreparedTask,
    allow: Sequence[str],
) -> ResumeDecision:
    progress = Progress(**checkpoint.record["progress"])
    changes = apply_allow(compare(before, identity, planned, progress), allow)
    bad = [change for change in changes if change.resume.effect in ("blocked", "incompatible")]
    _check_names(recorder, bad, identity["decided"])
    if bad:
        hint = ""
        if all(change.resume.effect == "blocked" for change in bad):
            names = tuple(dict.fromkeys(change.name for change in bad))
            hint = f" To resume anyway: --allow {','.join(names)} (allow={names!r} in Python)."
        if any(change.shown in (SOME_SAMPLES, FIRST_SAMPLES) for change in bad):
            hint = (
                " If the script creates the data at random, seed it: torch.manual_seed(0)." + hint
            )
        if "lr_find" in before and any(change.name == "optim.lr" for change in bad):
            hint = (
                f" The run found optim.lr={before['lr_find']:g}: set optim.lr='find' to use it "
                f"again (--optim.lr find).{hint}"
            )
        raise RunError(
            f"{recorder.folder} has a run with a different config:\n"
            + "\n".join(table(changes))
            + "\nChoose a different folder with --run (run= in Python), or use the config that the "
            f"run was started with.{hint}"
        )
    status, changed = recorder.run.status, {change.name for change in changes}
    is_longer = not changed.isdisjoint(LENGTHS) and progress.step < planned.plan.total_steps
    finished = (
        status.get("status") == "finished"
        and progress.step >= status.get("step", 0)
        and not is_longer
        and not any(name.startswith("early_stop.") for name in changed)
    )
    return ResumeDecision(
        identity, checkpoint, finished, changes, is_other_metric=_is_other_metric(changes)
    )


def _check_names(
    recorder: RunWriter, changes: Sequence[ConfigChange], decided: Mapping[str, Any]
) -> None:
    """Check that what config.json has is in the Plan, or an option; a damaged name is neither."""
    names = [c.name for c in changes if c.resume is UNKNOWN and c.name not in decided]
    if names:
        raise RunError(
            f"{recorder.folder / 'config.json'} has {format_value(names[0])}, which is not an "
            "option of this version of surestep, so it was changed or damaged. "
            f"{suggest_names(names[0], decided)} {COPY_HINT}"
        )


def _start(
    recorder: RunWriter, identity: dict[str, Any], planned: PreparedTask, from_: str | None
) -> ResumeDecision:
    """Start a run: from scratch, or from a checkpoint of another run."""
    known = identity["from"]  # of a run that was killed before its first checkpoint
    text = from_ or (f"{known['run']}@{known['step']}" if known else None)
    if text is None:
        return ResumeDecision(identity)
    found = find_checkpoint(text)
    if found.run is None:
        raise ConfigError(
            f"{text} is not in a run, so its config is not known. Pass RUN@STEP, or load only its "
            "weights with Task(init=...)."
        )
    checkpoint = open_checkpoint(found.saved.path)
    check_record(checkpoint.path, checkpoint.record)
    progress = Progress(**checkpoint.record["progress"])
    changes = apply_allow(compare(found.run.config, identity, planned, progress), allow=None)
    if any(change.resume.effect == "incompatible" for change in changes):
        raise RunError(f"{recorder.folder} cannot start from {text}:\n" + "\n".join(table(changes)))
    if progress.step >= planned.plan.total_steps:
        raise RunError(
            f"{text} is at step {progress.step}, and the run would end at step "
            f"{planned.plan.total_steps}. Set more: --epochs or --max-steps."
        )
    parent = found.run.path
    identity["from"] = {
        "run": str(parent.resolve()),
        "which": str(found.which),
        "step": found.saved.step,
    }
    return ResumeDecision(
        identity,
        checkpoint,
        changes=changes,
        parent=parent,
        is_other_metric=_is_other_metric(changes),
    )


def _is_other_metric(changes: list[ConfigChange]) -> bool:
    return any(change.name in ("validation.metric", "validation.mode") for change in changes)
