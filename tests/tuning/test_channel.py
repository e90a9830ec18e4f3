import math
import socket

from surestep.tuning.channel import Channel


def pair():
    return map(Channel, socket.socketpair())


def test_messages_arrive_whole_and_in_order():
    ours, theirs = pair()
    sent = [{"evaluations": [{"metrics": {"val/loss": math.inf}, "text": "\u2028x"}]}, {"n": 2}]
    for message in sent:
        assert theirs.send(message)
    theirs.close()
    assert list(ours.messages()) == sent
    ours.close()


def test_message_that_arrives_in_parts_is_joined():
    one, other = socket.socketpair()
    ours = Channel(one)
    other.sendall(b'{"a": 1}\n{"b"')
    assert ours.read() == [{"a": 1}]
    other.sendall(b": 2}\n")
    assert ours.read() == [{"b": 2}]
    other.close()
    assert ours.read() is None
    ours.close()


def test_sending_to_a_process_that_is_gone_is_reported():
    ours, theirs = pair()
    theirs.close()
    assert not (ours.send({}) and ours.send({}))
    ours.close()
