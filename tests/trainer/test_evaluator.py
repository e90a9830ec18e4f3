"""Evaluations are left where a signal came, by all ranks before the same batch."""

from surestep.engine.distributed.communicator import Communicator
from surestep.engine.step.loop import Loop
from surestep.trainer.evaluator import make_interrupt_check


class Two(Communicator):
    """Two ranks, of which the other asks for nothing."""

    def __init__(self):
        super().__init__(0, 2)
        self.exchanges = 0

    def all_reduce_sum(self, values):
        self.exchanges += 1
        return list(values)


def loop_of(world):
    loop = Loop.__new__(Loop)
    loop.world, loop.interrupted, loop.stopping, loop._asked = world, "", None, []
    return loop


def test_ranks_leave_an_evaluation_at_a_batch_before_which_they_have_agreed():
    loop = loop_of(Two())
    leave = make_interrupt_check(loop)
    assert not any(leave() for _ in range(17))
    loop.interrupt("SIGTERM")
    assert [leave() for _ in range(15)] == [False] * 14 + [True]
    assert (loop.interrupted, loop.world.exchanges) == ("SIGTERM", 2)


def test_one_process_leaves_an_evaluation_at_once():
    loop = loop_of(Communicator())
    leave = make_interrupt_check(loop)
    assert not leave()
    loop.interrupt("Ctrl-C")
    assert leave()
