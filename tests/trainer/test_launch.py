"""Commands that start their own processes, without starting them."""

import os
import signal
from argparse import ArgumentParser

import pytest
import torch.distributed.run as torchrun

from surestep.trainer.launch import launch_ranks
from tests.forked import fork


class Launches(list):
    """What torchrun was told to run; it then runs a function of the test."""

    def __init__(self, monkeypatch, then):
        super().__init__()
        monkeypatch.setattr(torchrun, "run", lambda args: (self.append(args), then()))


@pytest.mark.parametrize("number", [signal.SIGUSR1])
def test_signal_that_torchrun_does_not_handle_stops_the_processes(tmp_path, monkeypatch, number):
    def ignore(number, frame):
        pytest.fail("the handler of this process got the signal")

    def launch():
        signal.signal(number, ignore)
        Launches(monkeypatch, lambda: os.kill(os.getpid(), number))
        code = launch_ranks("surestep", ["train"], 2)
        assert signal.getsignal(number) is ignore
        return code

    # In a fork, since all processes that were started here would be stopped.
    done = fork(tmp_path, ("launch_ranks",), launch)
    assert done.returncode == os.EX_TEMPFAIL, done.stderr


def test_torchrun_without_a_time_to_save_is_reported(monkeypatch, capsys):
    runs, parser = Launches(monkeypatch, lambda: None), torchrun.get_args_parser()
    if "--shutdown-timeout" in parser.format_help():
        assert launch_ranks("surestep", ["train", "a.py"], 2) == 0
        assert (runs[0].shutdown_timeout, capsys.readouterr().err) == (600, "")
    old = ArgumentParser()
    for option in ("--nproc-per-node", "-m"):
        old.add_argument(option)
    old.add_argument("--standalone", action="store_true")
    old.add_argument("words", nargs="*")
    monkeypatch.setattr(torchrun, "get_args_parser", lambda: old)
    monkeypatch.setattr(torchrun, "parse_args", old.parse_args)
    assert launch_ranks("surestep", ["train", "a.py"], 2) == 0
    assert runs[-1].words == ["train", "a.py"]
    assert "kills processes that have not saved after 30 s" in capsys.readouterr().err
