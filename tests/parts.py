"""Add parts to an open session, or take one out."""

from collections.abc import Callable

from surestep.engine.step.callback import Callback
from surestep.engine.step.log_point import LogPoint
from surestep.engine.step.part import Functions
from surestep.trainer.session import Session


def add_part(session: Session, part: Callback) -> None:
    """Call a part after all others."""
    session.loop.attach([*session.loop.parts, part], session.messages.notify)


def remove_part(session: Session, part: Callback) -> None:
    """Call all parts but one."""
    assert part in session.loop.parts
    rest = [other for other in session.loop.parts if other is not part]
    session.loop.attach(rest, session.messages.notify)


def see_log_points(session: Session, see: Callable[[LogPoint], None]) -> None:
    """Call a function with each log point."""
    add_part(session, Functions("test", on_log=lambda state, point: see(point)))
