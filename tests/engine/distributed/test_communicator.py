import pytest

from surestep.engine.distributed.communicator import ALONE, WORDS, Communicator


def test_collectives_of_a_single_process_return_their_input():
    assert ALONE.all_reduce_sum([1.5, 2.0]) == [1.5, 2.0]
    assert ALONE.all_gather_text("å") == ["å"]
    assert ALONE.broadcast_json({"a": [1, None]}) == {"a": [1, None]}
    assert ALONE.is_first


def test_request_is_agreed_at_the_next_exchange_and_then_cleared():
    world = Communicator()
    world.requests.add("save")
    assert world.exchange([4.0]) == [4.0]
    assert world.agreed == {"save"}
    assert world.exchange([4.0]) == [4.0]
    assert world.agreed == set()


def test_signal_during_an_exchange_is_agreed_at_the_next_exchange():
    class Struck(set):
        """A set that receives a signal in its last look-up."""

        def __contains__(self, word):
            if word == WORDS[-1]:
                world.requests.add("SIGTERM")
            return super().__contains__(word)

    world = Communicator()
    world.requests = Struck()
    world.exchange([])
    assert world.agreed == set()
    world.exchange([])
    assert world.agreed == {"SIGTERM"}


def test_summary_without_a_request_sets_only_the_shared_time():
    world = Communicator(rank=1, size=2)
    world.exchange = pytest.fail
    assert world.summarize() == (0.0, 0.0)
    world.agree_by(0.0, 2.5)
    world.agree_by(0.0, 2.4)  # rounded, after an exchange that did not round: it never goes back
    assert world.seconds == 2.5
    assert (world.seconds, world.agreed) == (2.5, set())


def test_request_in_the_summary_of_any_rank_is_exchanged_at_once():
    world = Communicator()
    world.requests.add("save")
    requests, seconds = world.summarize()
    assert requests == 1.0
    world.agree_by(requests, seconds)
    assert (world.agreed, world.requests) == ({"save"}, set())
