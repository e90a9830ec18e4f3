"""What happens when a session opens: where the run stands, what is watched."""

from dataclasses import asdict
from typing import Any

from surestep.engine.data.resume import going_on
from surestep.engine.measure.profiling import Profile
from surestep.engine.parallel.launch import Launched, read_launched, too_few
from surestep.engine.parallel.rank_log import Fork
from surestep.engine.parallel.world import World
from surestep.engine.plan import Plan
from surestep.record.checkpoint.declared import strangers
from surestep.record.progress import Bar, Filed, Plain, Quiet, open_progress
from surestep.record.recorder import Recorder
from surestep.trainer.changes import table
from surestep.trainer.resuming import Going
from surestep.trainer.rollback import SpikeWatch
from surestep.trainer.session import Session


def begin(session: Session, recorder: Recorder, going: Going, log: Fork | None = None) -> None:
    """Show where a run stands that was just made or loaded, and what differs from before."""
    own = going.checkpoint if going.branch is None else None
    session.open(_display(session, log), None if own is None else own.path, finished=going.finished)
    session.loop.notices.append(recorder.notice)
    for text in recorder.told:
        recorder.event("notice", step=session.state.place.step, text=text)
        session.say(text)
    if (told := too_few()) is not None:
        session.say(told)
    if (size := session.loop.world.size) > 1:
        session.say(ranks(session.plan, size))
    _watch_profile(session)
    if going.branch is None:
        _tell_where_it_stands(session, recorder)
    else:
        where, path = session.state.place, going.branch.run.path
        session.say(f"{session.run.path} starts from step {where.step} of {path}.")
    if going.judges_anew and not going.finished:
        session.save()  # what is judged anew; and the other run may delete its own
    if going.checkpoint is not None and not going.finished:
        for line in strangers(going.checkpoint.record, session.state):
            session.say(line)
    if going.changes:
        session.say("\n".join(["What differs from before:", *table(going.changes)]))
    _watch_spikes(session, recorder)


def ranks(plan: Plan, size: int) -> str:
    """Say how many ranks train together, over what, and in which way."""
    part = {"fsdp": f" {plan.parallel_shard}", "deepspeed": f" ZeRO {plan.parallel_zero}"}
    way = f"{plan.parallel_kind}{part.get(plan.parallel_kind, '')}"
    return f"{size} ranks ({plan.parallel_backend}, {plan.device.type}), {way}."


def _display(session: Session, log: Fork | None) -> Quiet | Plain | Bar:
    """Open what is shown: on the first rank, and in the file of each rank that has one."""
    shown: Quiet | Plain | Bar = Quiet()
    if session.loop.world.is_first:
        out = None if log is None else log.terminal
        shown = open_progress(session.plan, session.state.place.step, out)
    if isinstance(shown, Bar):
        session.loop.watch(shown)
    return shown if log is None else Filed(session.plan, shown, log.alone())


def followed(world: World, session: Session, recorder: Recorder) -> None:
    """Let the watch over the ranks know the step, and keep in the events what it tells."""

    def note(text: str, stands: list[Any]) -> None:
        ranks = [{**asdict(each), "stack": list(map(str, each.stack))} for each in stands]
        recorder.event("stall", step=session.state.place.step, text=text, ranks=ranks)

    if world.watch is not None:
        world.watch.follow(lambda: session.state.place.step, note)


def _watch_profile(session: Session) -> None:
    if session.plan.profile is None or session.finished:
        return
    first, last = map(int, session.plan.profile.split(":"))
    if session.state.place.step >= last:
        step = session.state.place.step
        session.say(f"profile={session.plan.profile!r} is over: step {step} is done.")
    profile = Profile(first, last, session.run.path / "profile", session.loop)
    session.loop.watch(profile)
    session.loop.notices.append(profile.notice)


def _tell_where_it_stands(session: Session, recorder: Recorder) -> None:
    place, folder = session.state.place, session.run.path
    again = restarted(read_launched())
    if recorder.passed_over:
        reasons = "\n".join(each.reason for each in recorder.passed_over)
        session.say(f"{reasons} Going back to the newest that is good: step {place.step}.")
    if session.finished:
        session.say(f"{folder} is finished: {place.step} steps are done.")
    elif place.step:
        recorder.event("resume", step=place.step)
        where = f"step {place.step}, epoch {place.epoch + 1}"
        how = going_on(session.loop.feed.source, session.plan, place)
        session.say(f"{again}{'going' if again else 'Going'} on in {folder} from {where}{how}.")
    elif recorder.known:
        recorder.event("restart", step=0)
        nothing = "nothing" if again else "Nothing"
        session.say(f"{again}{nothing} was saved in {folder} yet: starting anew.")


def restarted(launched: Launched) -> str:
    """Say which start of the launcher this is, before a sentence; nothing of the first."""
    if not launched.attempt:
        return ""
    return f"Restart {launched.attempt} of {launched.restarts}: "


def _watch_spikes(session: Session, recorder: Recorder) -> None:
    if session.plan.on_spike == "off" or session.finished:
        return
    session.loop.on_log.append(SpikeWatch(session, recorder))
    if session.plan.on_spike == "rollback" and not session.state.place.step:
        session.saving.begin()  # so that there is something to go back to
