"""A process that is killed around a rollback leaves a mirror with which the run can be resumed.

The rollback deletes checkpoint 70 in the run folder. A kill is a copy of the run folder and of the
mirror at that moment, which then take their place.
"""

import shutil
from pathlib import Path
from threading import RLock

import pytest

import surestep
from surestep.mirror import push, uploader
from surestep.mirror.link import read_link
from surestep.mirror.push import Pusher
from surestep.mirror.store import Store
from surestep.record.checkpoint.discovery import list_checkpoints
from surestep.trainer.checkpointing import CheckpointManager
from tests.laws.support.spike_task import BATCH, DECAY, LR, task_of
from tests.mirror.runs import names
from tests.mirror.test_uploader import wait_until

ABANDONED = "step-00000070"
# When the process is killed, by whether 70 is saved again before the mirror is written again.
MOMENTS = {
    False: ["recorded", "deleted", "half pruned", "pruned"],
    True: ["saved again", "half replaced", "replaced"],
}


def train(run, mirror=None):
    options = {
        **{"epochs": 1, "batch_size": BATCH, "optim.lr": LR, "optim.weight_decay": DECAY},
        **{"on_spike": "rollback", "checkpoint.every": "10 steps", "logging.every": "25 steps"},
        **{"checkpoint.keep_last": 3, "logging.progress": "plain"},
    }
    if mirror is not None:
        options["checkpoint.mirror"] = str(mirror)
    config = surestep.Config.from_options(options)
    return surestep.Trainer(task_of(dropout=0.2), config, run=run).fit()


def weights(run):
    return (run.last.path / "model.safetensors").read_bytes()


class Kills:
    """Copies what a kill would leave, at each of the moments; `folder` has the run and `mirror`."""

    def __init__(self, folder, *, saves_again):
        self.folder, self.saves_again = folder, saves_again
        self.gate = RLock()  # between the thread that trains, and the one that copies
        self.gate_is_closed = False
        self.may_forget = False
        self.mirror = folder / "mirror"

    def kill(self, moment):
        if not (self.folder / moment).exists():
            for name in ("runs", "mirror"):
                shutil.copytree(self.folder / name, self.folder / moment / name)

    def patch(self, monkeypatch):
        monkeypatch.setattr(uploader, "INTERVAL_S", 0.01)

        def around(owner, name, act):
            call = getattr(owner, name)
            monkeypatch.setattr(owner, name, lambda *args, **more: act(call, *args, **more))

        around(Pusher, "push", self.push)
        around(push, "delete_local", self.delete_local)
        around(CheckpointManager, "collect", self.collect)
        around(Store, "delete", self.delete)
        around(Pusher, "_forget_abandoned", self.forget)

    def push(self, call, pusher, **more):
        with self.gate:
            call(pusher, **more)

    def delete_local(self, call, paths):
        paths = list(paths)
        assert [path.name for path in paths] == [ABANDONED]
        wait_until(lambda: ABANDONED in names(self.mirror))
        with self.gate:
            if not self.saves_again:
                self.kill("recorded")
            call(paths)
            if not self.saves_again:
                self.kill("deleted")
                self.may_forget = True
            else:
                self.gate.acquire()  # once more: nothing is copied until 70 is saved again
                self.gate_is_closed = True
        if not self.saves_again:
            wait_until(lambda: ABANDONED not in names(self.mirror))

    def collect(self, call, manager, *, wait=False):
        call(manager, wait=wait or self.gate_is_closed)
        recorder = manager._recorder
        newest = list_checkpoints(recorder.checkpoints)[-1:]
        if self.gate_is_closed and [path.name for path in newest] == [ABANDONED]:
            self.kill("saved again")
            self.gate_is_closed, self.may_forget = False, True
            self.gate.release()
            wait_until(lambda: read_link(recorder.folder).abandoned == {})

    def delete(self, call, store, found):
        found = list(found)
        call(store, found)
        if any(ABANDONED in name for name in found):  # the first is the manifest
            self.kill("half replaced" if self.saves_again else "half pruned")

    def forget(self, call, pusher, *args):
        if self.may_forget and pusher.link.abandoned:
            self.kill("replaced" if self.saves_again else "pruned")
        call(pusher, *args)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The folder of a run with its mirror, and of what each kill would leave."""
    folder = tmp_path_factory.mktemp("killed")
    for saves_again in MOMENTS:
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.chdir(folder)
            Kills(folder, saves_again=saves_again).patch(monkeypatch)
            train(f"file://{folder}/mirror")
        shutil.rmtree(folder / "runs")
        shutil.rmtree(folder / "mirror")
    train(folder / "whole")
    return folder


@pytest.mark.parametrize("given_by", ["address", "option"])
@pytest.mark.parametrize("moment", [*MOMENTS[False], *MOMENTS[True]])
def test_run_killed_around_its_rollback_continues_without_the_abandoned_checkpoint(
    killed, monkeypatch, capfd, moment, given_by
):
    monkeypatch.chdir(killed)
    for name in ("runs", "mirror"):
        shutil.rmtree(killed / name, ignore_errors=True)
        shutil.copytree(killed / moment / name, killed / name)
    address = f"file://{killed}/mirror"
    run = train(address) if given_by == "address" else train(next(Path("runs").iterdir()), address)
    assert "Fetching" not in capfd.readouterr().err
    assert weights(run) == weights(surestep.Run(killed / "whole"))
    assert names(killed / "mirror") == names(run.path)
    assert all(each.verified for each in surestep.Run(killed / "mirror").verify())
    assert read_link(run.path).abandoned == {}
