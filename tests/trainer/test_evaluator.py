"""After a signal, all ranks leave an evaluation before the same batch."""

from surestep.engine.distributed.communicator import Communicator
from surestep.engine.step.loop import Loop
from surestep.trainer.evaluator import make_interrupt_check


class Two(Communicator):
    """Two ranks, of which the other requests nothing."""

    def __init__(self):
        super().__init__(0, 2)
        self.exchanges = 0

    def all_reduce_sum(self, values):
        self.exchanges += 1
        return list(values)


def loop_of(world):
    loop = Loop.__new__(Loop)
    loop.world, loop.interrupted, loop.stopping, loop._asked = world, "", None, []
    loop._moments = {"on_eval_batch": []}
    return loop


def test_ranks_leave_an_evaluation_at_an_agreed_batch():
    loop = loop_of(Two())
    leave = make_interrupt_check(loop)
    assert not any(leave() for _ in range(17))
    loop.request("SIGTERM")
    assert [leave() for _ in range(15)] == [False] * 14 + [True]
    assert (loop.interrupted, loop.world.exchanges) == ("SIGTERM", 2)


def test_single_process_leaves_an_evaluation_immediately():
    loop = loop_of(Communicator())
    leave = make_interrupt_check(loop)
    assert not leave()
    loop.request("Ctrl-C")
    assert leave()
