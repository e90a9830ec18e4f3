"""A mirror never disturbs training: outages are reported once, and made up for."""

import math
import re
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fsspec.implementations.local import LocalFileSystem

import surestep
from surestep.base.errors import ConfigError
from surestep.mirror import owner, progress, push, store, uploader
from surestep.mirror.link import MirrorLink, read_link
from surestep.mirror.owner import Owner, read_owner, release_owner
from surestep.mirror.push import Pusher
from surestep.mirror.store import Store
from surestep.record import final_wait, progress_display
from surestep.record.io import dumps
from surestep.record.lock import RunLock
from surestep.record.run_writer import RunWriter
from surestep.trainer import prepare
from surestep.trainer.trackers import TrackerThreads
from tests.mirror.runs import STEPS, files, flip_byte, last_weights, names, train


class Outage:
    """Makes every write of a store fail while it lasts, and not before an event."""

    def __init__(self, monkeypatch, error=None, after=None):
        self.error = error or ConnectionError("the server is away\nmore text")
        self.after = after
        self.lasts = True
        self.failures = 0
        for name in ("write", "upload"):
            monkeypatch.setattr(Store, name, self.around(getattr(Store, name)))

    def around(self, call):
        def act(store, name, *more):
            if self.lasts:
                if self.after is not None:
                    self.after.wait(60)
                self.failures += 1
                raise self.error
            return call(store, name, *more)

        return act


class At(surestep.Callback):
    """Calls a function after a step."""

    def __init__(self, step, act):
        self.step, self.act = step, act

    def on_step(self, state, result):
        if state.progress.step == self.step:
            self.act()


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    """Let a slow machine copy the rest without a line that says so."""
    monkeypatch.setattr(final_wait, "_SILENT_S", math.inf)


@pytest.fixture
def clock(monkeypatch):
    """The clock of the wait at the end of a run: it stands still unless a test moves it.

    Its method `wait` waits until the run has looked at it again.
    """
    clock = SimpleNamespace(now=0.0, looks=0)

    def read():
        clock.looks += 1
        return clock.now

    def wait():
        seen = clock.looks  # one look may have begun before the clock was moved
        wait_until(lambda: clock.looks > seen + 1)

    clock.wait = wait
    monkeypatch.setattr(uploader, "time", SimpleNamespace(monotonic=read))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def wait_until(holds):
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def has_no_uploader():
    return "surestep-mirror" not in [each.name for each in threading.enumerate()]


def read_until(capfd, text):
    """Return what is printed until it has a text, for two minutes at most."""
    printed, end_s = "", time.monotonic() + 120
    while text not in printed and time.monotonic() < end_s:
        printed += capfd.readouterr().err
        time.sleep(0.01)
    return printed


def printed_lines(capfd):
    """Return what the run printed: a message that comes at its end is not in its events."""
    return capfd.readouterr().err.splitlines()


def test_mirrored_run_is_complete_and_equal_to_one_without_a_mirror(tmp_path, capfd):
    plain = train(tmp_path / "plain")
    run = train(tmp_path / "run", tmp_path / "mirror")
    assert last_weights(run) == last_weights(plain)
    assert names(tmp_path / "mirror") == names(run.path)
    mirrored = surestep.Run(tmp_path / "mirror")
    assert mirrored.status["status"] == "finished"
    assert list(mirrored.events()) == list(run.events())
    assert "mirror" not in capfd.readouterr().err


def test_outage_is_reported_once_and_made_up_for(tmp_path, monkeypatch, capfd):
    outage = None

    def begin():
        nonlocal outage
        outage = Outage(monkeypatch)

    def end():
        wait_until(lambda: outage.failures > 3)
        outage.lasts = False
        wait_until(lambda: "step-00000006" in names(tmp_path / "mirror"))

    run = train(tmp_path / "run", tmp_path / "mirror", callbacks=[At(3, begin), At(9, end)])
    assert names(tmp_path / "mirror") == names(run.path)
    told = [text for text in printed_lines(capfd) if str(tmp_path / "mirror") in text]
    assert len(told) == 2
    assert "takes no copies: ConnectionError: the server is away. Training continues" in told[0]
    assert told[1].endswith("has what it had missed.")


def test_mirror_that_is_full_does_not_stop_the_run(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(uploader, "STALLED_S", 2.0)

    def begin():
        Outage(monkeypatch, OSError(28, "No space left on device"))

    run = train(tmp_path / "run", tmp_path / "mirror", callbacks=[At(3, begin)])
    assert run.status["status"] == "finished"
    printed = capfd.readouterr().err
    assert "No space left on device" in printed
    assert f"To copy the rest: surestep mirror push {tmp_path / 'run'}" in printed


def test_outage_from_the_start_is_made_up_for(tmp_path, monkeypatch, capfd):
    outage = Outage(monkeypatch)

    def end():
        wait_until(lambda: outage.failures > 3)
        outage.lasts = False

    run = train(tmp_path / "run", tmp_path / "mirror", callbacks=[At(6, end)])
    assert names(tmp_path / "mirror") == names(run.path)
    told = [text for text in printed_lines(capfd) if str(tmp_path / "mirror") in text]
    assert ["takes no copies" in text for text in told[:1]] == [True]


class Hang:
    """Keeps the driver of a disk from writing files until it is released."""

    def __init__(self, monkeypatch):
        self.begun, self.release = threading.Event(), threading.Event()
        pipe_file = LocalFileSystem.pipe_file

        def wait(fs, path, data):
            self.begun.set()
            self.release.wait(60)
            pipe_file(fs, path, data)

        monkeypatch.setattr(LocalFileSystem, "pipe_file", wait)


def test_mirror_that_does_not_answer_is_reported_like_one_that_cannot_be_reached(
    tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(uploader, "HANGING_S", 0.05)
    hang, at = None, {}

    def begin():
        nonlocal hang
        hang = Hang(monkeypatch)

    def wait():
        assert hang.begun.wait(60)
        time.sleep(0.2)  # longer than HANGING_S

    def end():
        hang.release.set()
        monkeypatch.setattr(uploader, "HANGING_S", 60.0)
        wait_until(lambda: "step-00000009" in names(tmp_path / "mirror"))

    at = [At(2, begin), At(7, wait), At(10, end)]
    run = train(tmp_path / "run", tmp_path / "mirror", callbacks=at)
    assert names(tmp_path / "mirror") == names(run.path)
    lines = [text for text in printed_lines(capfd) if str(tmp_path / "mirror") in text]
    assert len(lines) == 2
    assert re.search(r"takes no copies: it has not answered for \d+ s. Training cont", lines[0])
    assert lines[1].endswith("has what it had missed.")


def test_mirror_that_does_not_answer_at_the_end_is_reported(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(uploader, "STALLED_S", 0.2)
    hang = None

    def begin():
        nonlocal hang
        hang = Hang(monkeypatch)
        assert hang.begun.wait(60)

    run = train(tmp_path / "run", tmp_path / "mirror", callbacks=[At(STEPS, begin)])
    hang.release.set()
    assert run.status["status"] == "finished"
    outage, rest = [text for text in printed_lines(capfd) if str(tmp_path / "mirror") in text]
    assert re.search(r"/mirror takes no copies: it has not answered for \d+ s\.$", outage)
    assert "To copy the rest: surestep mirror push" in rest


def test_start_reports_that_it_waits_for_a_mirror_that_does_not_answer(
    tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(store, "SILENT_S", 0.05)
    hang, message = Hang(monkeypatch), f"{tmp_path}/mirror does not answer yet. Ctrl-C ends"
    printed = []

    def release():
        printed.append(read_until(capfd, message))
        hang.release.set()

    thread = threading.Thread(target=release)
    thread.start()
    train(tmp_path / "run", tmp_path / "mirror", max_steps=3)
    thread.join()
    assert message in printed[0]


def test_next_process_copies_what_an_ended_one_could_not(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(uploader, "STALLED_S", 0.05)
        Outage(patch)
        run = train(tmp_path / "run", tmp_path / "mirror")
        assert names(tmp_path / "mirror") == []
        wait_until(has_no_uploader)  # as if the process had ended
    train(tmp_path / "run", tmp_path / "mirror")  # it is finished
    assert names(tmp_path / "mirror") == names(run.path)


def test_end_of_a_run_waits_while_the_mirror_makes_progress(tmp_path, monkeypatch, capfd, clock):
    monkeypatch.setattr(final_wait, "_SILENT_S", 0.0)
    upload, count = Store.upload, 0

    def slow(store, *args):
        nonlocal count
        wait_until(lambda: clock.looks)  # so that the run has ended
        note = store.progress.begin(f"test {args[0]}")
        count += 1
        clock.now += 40.0
        note(1)
        clock.wait()
        upload(store, *args)

    monkeypatch.setattr(Store, "upload", slow)
    run = train(tmp_path / "run", tmp_path / "mirror")
    assert count * 40.0 > 2 * uploader.STALLED_S
    assert names(tmp_path / "mirror") == names(run.path)
    assert f"Sending the rest to {tmp_path}/mirror: 0 B of " in capfd.readouterr().err


def test_end_of_a_run_does_not_give_up_a_mirror_that_had_nothing_to_copy(
    tmp_path, monkeypatch, capfd, clock
):
    push, at_work = Pusher.push, threading.Lock()

    def push_at_the_end(pusher, *, is_last):
        with at_work:
            if clock.now and is_last:
                wait_until(
                    lambda: clock.looks > 2
                )  # the end of the run has asked how long it waits
            if is_last or not clock.now:
                push(pusher, is_last=is_last)

    def idle():
        with at_work:
            clock.now = 2 * uploader.STALLED_S

    monkeypatch.setattr(Pusher, "push", push_at_the_end)
    run = train(tmp_path / "run", tmp_path / "mirror", callbacks=[At(STEPS, idle)])
    assert names(tmp_path / "mirror") == names(run.path)
    assert "To copy the rest" not in capfd.readouterr().err


def test_run_ends_if_the_mirror_takes_everything_but_checkpoints(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(uploader, "STALLED_S", 0.6)  # three renewals, as in a real run
    monkeypatch.setattr(owner, "RENEW_S", 0.2)
    upload, is_full = Store.upload, True

    def fail(store, name, *more):
        if is_full and name.endswith("model.safetensors"):
            raise OSError(122, "Disk quota exceeded")
        upload(store, name, *more)

    def end():
        nonlocal is_full
        is_full = False

    monkeypatch.setattr(Store, "upload", fail)
    timer = threading.Timer(120, end)  # so that a run that waits for ever ends as well
    timer.start()
    train(tmp_path / "run", tmp_path / "mirror")
    timer.cancel()
    assert is_full
    assert "To copy the rest: surestep mirror push" in capfd.readouterr().err


def test_failure_at_the_end_is_printed_while_it_is_waited_for(tmp_path, monkeypatch, capfd):
    outage, printed = None, ""

    def end():
        nonlocal printed
        printed = read_until(capfd, "takes no copies")
        outage.lasts = False

    close = uploader.Uploader.close

    def close_in_an_outage(self, *more):
        nonlocal outage
        outage = Outage(monkeypatch, after=self._closing)
        threading.Thread(target=end).start()
        close(self, *more)

    monkeypatch.setattr(uploader.Uploader, "close", close_in_an_outage)
    run = train(tmp_path / "run", tmp_path / "mirror")
    assert "It is tried for 60 s more." in printed
    assert names(tmp_path / "mirror") == names(run.path)


def test_late_start_with_newer_steps_than_the_mirror_ends_the_fetch(tmp_path, monkeypatch):
    run = train(tmp_path / "run", tmp_path / "mirror", max_steps=6).path
    train(run, max_steps=9)
    replace(read_link(run), fetching=True).write(run)
    listed, failures = Store.list, 0

    def fail_once(self):
        nonlocal failures
        failures += 1
        if failures == 1:
            raise ConnectionError("the server is away")
        return listed(self)

    monkeypatch.setattr(Store, "list", fail_once)
    train(run, tmp_path / "mirror")
    assert failures > 1
    assert not read_link(run).fetching
    assert names(tmp_path / "mirror") == names(run)


def test_slow_mirror_does_not_delay_the_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(uploader, "STALLED_S", 2.0)
    monkeypatch.setattr(uploader, "STALLED_S", 2.0)
    release, answers = threading.Event(), []
    # The time ends a run that waits for it.
    monkeypatch.setattr(Store, "upload", lambda *_: answers.append(release.wait(300)))
    try:
        run = train(tmp_path / "run", tmp_path / "mirror")
        assert answers == []
        assert run.last.step == STEPS
    finally:
        release.set()


def test_ctrl_c_ends_the_wait_for_the_mirror(tmp_path, monkeypatch, capfd):
    release = threading.Event()
    monkeypatch.setattr(Store, "upload", lambda *_: release.wait(60))

    class Interrupted(threading.Thread):
        def join(self, timeout=None):
            if self.name == "surestep-mirror":
                raise KeyboardInterrupt
            super().join(timeout)

    monkeypatch.setattr(uploader, "Thread", Interrupted)
    try:
        run = train(tmp_path / "run", tmp_path / "mirror")
    finally:
        release.set()
    (text,) = [text for text in printed_lines(capfd) if "lacks" in text]
    assert re.search(r"/mirror lacks step-0.* and [0-9]+ more \([0-9.]+ KiB\) of this run", text)
    assert text.endswith(f" To copy the rest: surestep mirror push {run.path}")
    assert run.status["status"] == "finished"


def test_rest_is_counted_in_bytes_at_the_end_of_a_run(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(final_wait, "_SILENT_S", 0.0)
    monkeypatch.setattr(progress_display, "TRANSFER_EVERY_S", 0.0)
    monkeypatch.setattr(push, "COUNT_S", 0.0)
    upload, closing = Store.upload, threading.Event()
    close = uploader.Uploader.close

    def slow(store, *more):
        closing.wait(60)
        upload(store, *more)
        time.sleep(0.1)

    def begin(self, *more):
        closing.set()
        close(self, *more)

    monkeypatch.setattr(Store, "upload", slow)
    monkeypatch.setattr(uploader.Uploader, "close", begin)
    run = train(tmp_path / "run", tmp_path / "mirror")
    shown = [text for text in printed_lines(capfd) if "Sending the rest" in text]
    assert shown[0].startswith(f"Sending the rest to {tmp_path}/mirror: 0 B of ")
    assert len({text.partition(" of ")[0] for text in shown}) > 3
    assert len({text.partition(" of ")[2] for text in shown}) < 3
    assert names(tmp_path / "mirror") == names(run.path)


def test_run_whose_mirror_is_taken_over_continues_without_it(tmp_path, monkeypatch, capfd):
    store = Store(str(tmp_path / "mirror"))

    def take():
        # The writer renews its mark after its first checkpoint, which would undo the release.
        wait_until(lambda: (read_owner(store) or {}).get("saved"))
        assert release_owner(store)
        wait_until(has_no_uploader)

    run = train(tmp_path / "run", tmp_path / "mirror", callbacks=[At(6, take)])
    assert run.status["status"] == "finished"
    assert any(
        "taken over by a command. The run continues" in text for text in printed_lines(capfd)
    )
    assert names(tmp_path / "mirror") != names(run.path)


def test_checkpoint_that_is_damaged_here_is_reported_and_not_copied(tmp_path, capfd):
    options = {"schedule.name": "constant", "checkpoint.keep_last": 9}
    run = train(tmp_path / "run", max_steps=6, **options)
    flip_byte(run.path / "checkpoints" / "step-00000003" / "model.safetensors")
    train(run.path, tmp_path / "mirror", **options)
    told = [text for text in printed_lines(capfd) if "It is not copied" in text]
    assert len(told) == 1
    assert "step-00000003 is damaged: model.safetensors" in told[0]
    complete = [
        path.parent.name for path in (tmp_path / "mirror" / "checkpoints").glob("*/manifest.json")
    ]
    assert sorted(complete) == ["step-00000006", "step-00000009", "step-00000012"]


def test_rest_is_copied_after_the_process_group_and_the_saves_and_before_the_unlock(
    tmp_path, monkeypatch
):
    order = []

    def note(owner_of, name, text):
        call = getattr(owner_of, name)

        def act(*args, **options):
            order.append(text)
            return call(*args, **options)

        monkeypatch.setattr(owner_of, name, act)

    @contextmanager
    def noted_settings(plan):
        with torch_settings(plan):
            yield
        order.append("settings")  # the first to be entered, so the last to be left

    torch_settings = prepare.torch_settings
    monkeypatch.setattr(prepare, "torch_settings", noted_settings)
    note(RunWriter, "collect_saves", "saves")
    note(uploader.Uploader, "close", "mirror")
    note(RunLock, "release", "unlock")
    train(tmp_path / "run", tmp_path / "mirror")
    assert order[-5:] == ["settings", "saves", "mirror", "saves", "unlock"]


def test_mirror_is_released_if_a_tracker_cannot_start(tmp_path, monkeypatch):
    def fail(*_):
        raise ConfigError("it cannot start")

    with monkeypatch.context() as patch:
        patch.setattr(TrackerThreads, "start", fail)
        with pytest.raises(ConfigError, match="it cannot start"):
            train(tmp_path / "run", tmp_path / "mirror")
    assert read_owner(Store(str(tmp_path / "mirror")))["writer"] is None
    run = train(tmp_path / "run", tmp_path / "mirror")
    assert names(tmp_path / "mirror") == names(run.path)


class ReleaseFails:
    """Makes the release of a mirror fail a number of times."""

    def __init__(self, monkeypatch, count):
        self.count = count
        release = Owner.release

        def fail(owner):
            if owner.is_owner and self.count:
                self.count -= 1
                raise ConnectionError("the server is away")
            release(owner)

        monkeypatch.setattr(Owner, "release", fail)


def test_release_is_tried_again_at_the_end(tmp_path, monkeypatch, capfd):
    fails = ReleaseFails(monkeypatch, 3)
    train(tmp_path / "run", tmp_path / "mirror")
    assert fails.count == 0
    assert read_owner(Store(str(tmp_path / "mirror")))["writer"] is None
    printed = capfd.readouterr().err
    assert "mirror release" not in printed
    assert printed.count("takes no copies") == 1


def test_command_that_releases_the_mirror_is_printed_if_the_run_could_not(
    tmp_path, monkeypatch, capfd, clock
):
    fails = ReleaseFails(monkeypatch, 10**9)
    fail = Owner.release

    def fail_slowly(owner):
        wait_until(lambda: clock.looks)
        clock.now += 25.0
        fail(owner)

    monkeypatch.setattr(Owner, "release", fail_slowly)
    run = train(tmp_path / "run", tmp_path / "mirror")
    assert names(tmp_path / "mirror") == names(run.path)
    printed = capfd.readouterr().err
    assert fails.count <= 10**9 - 2  # it was tried again
    assert f"unless you release it: surestep mirror release {tmp_path / 'mirror'}" in printed
    assert "mirror push" not in printed


def test_run_whose_machine_slept_writes_nothing_to_a_mirror_that_was_taken_over(
    tmp_path, monkeypatch, capfd
):
    """Another machine waits for STALE_S, in which this one did not renew, and then continues."""
    monkeypatch.setattr(owner, "STALE_S", 120.0)
    store, found, gate = Store(str(tmp_path / "mirror")), {}, threading.Lock()
    make_pass, read = uploader.Uploader._pass, time.clock_gettime

    def make_gated_pass(self, **more):
        with gate:
            return make_pass(self, **more)

    def sleep():
        wait_until(lambda: "step-00000003" in names(tmp_path / "mirror"))
        with gate:
            writer = {"host": "other", "pid": 7, "token": "t", "time": time.time()}
            store.write(owner.FILE, dumps({**read_owner(store), "writer": writer}).encode())
            found.update(files(tmp_path / "mirror"))
            monkeypatch.setattr(time, "clock_gettime", lambda clock: read(clock) + 130)

    monkeypatch.setattr(uploader.Uploader, "_pass", make_gated_pass)
    train(tmp_path / "run", tmp_path / "mirror", callbacks=[At(5, sleep)])
    assert "was taken over by process 7 on other" in capfd.readouterr().err
    assert files(tmp_path / "mirror") == found
    assert read_owner(store)["writer"]["pid"] == 7


def test_mirror_that_is_joined_after_the_run_gave_it_up_can_be_written_again(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    store, answers = Store(str(tmp_path / "mirror")), threading.Event()
    link, writer = MirrorLink("id", store.address), Owner(store, "id")

    def join():
        assert answers.wait(60)
        writer.acquire(print)

    late = uploader.LateStart(ConnectionError("away"), join)
    monkeypatch.setattr(uploader, "wait_until_sent", lambda *_, **__: None)  # the run gives up
    copier = uploader.Uploader(tmp_path / "run", store, link, writer, late)
    copier.start()
    copier.close(print)
    answers.set()
    assert copier.wait(60)
    again = Owner(store, "id")
    again.acquire(print)
    again.release()
