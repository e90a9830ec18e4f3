"""After a signal, all ranks leave an evaluation before the same batch."""

from types import SimpleNamespace

from surestep.engine.distributed.communicator import Communicator
from surestep.engine.step.requests import Requests
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
    parts = SimpleNamespace(call=lambda moment: None)
    return SimpleNamespace(world=world, requests=Requests(world), parts=parts)


def test_ranks_leave_an_evaluation_at_an_agreed_batch():
    loop = loop_of(Two())
    leave = make_interrupt_check(loop)
    assert not any(leave() for _ in range(17))
    loop.requests.ask("SIGTERM")
    assert [leave() for _ in range(15)] == [False] * 14 + [True]
    assert (loop.requests.interrupted, loop.world.exchanges) == ("SIGTERM", 2)


def test_single_process_leaves_an_evaluation_immediately():
    loop = loop_of(Communicator())
    leave = make_interrupt_check(loop)
    assert not leave()
    loop.requests.ask("Ctrl-C")
    assert leave()
