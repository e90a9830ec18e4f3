import signal
import threading

import pytest

from surestep.base.noted_signals import NUMBERS, NotedSignals


def handlers():
    return [signal.getsignal(number) for number in NUMBERS]


def test_noted_signals_are_sent_again_to_the_handlers_of_before():
    before = handlers()
    with NotedSignals() as noted:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            noted.send_again()
        assert handlers() == before
        noted.send_again()  # each signal once
    assert handlers() == before


def test_handlers_of_others_stay():
    came = []
    before = signal.signal(signal.SIGUSR1, lambda *_: came.append("own"))
    try:
        with NotedSignals() as noted:
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGTERM)
            signal.signal(signal.SIGTERM, lambda *_: came.append("later"))
            noted.send_again()
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGUSR1, before)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert came == ["own", "later", "later"]


def test_thread_notes_nothing():
    def note():
        with NotedSignals() as noted:
            replaced.append(noted.replaced)

    replaced = []
    thread = threading.Thread(target=note)
    thread.start()
    thread.join()
    assert replaced == [{}]
