"""micro_batch_size="fit": what is taken again, what is not, and what is recorded and said."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import surestep
from surestep.base.errors import ConfigError, OutOfMemoryError, RunError
from surestep.cli.runs import _row
from surestep.engine.step import fitted_steps
from surestep.record.records import load_records
from surestep.reports.describe_run import describe_numbers
from surestep.tracking.points import read_points
from surestep.trainer import fit_memory, found_sizes
from surestep.trainer import memory as estimates
from surestep.trainer.found_sizes import FoundSizes, load_sizes, locate_sizes, store_sizes
from surestep.trainer.planning import TaskOrigin, plan_task
from surestep.trainer.session import Session
from tests.laws.support.limited_memory import OUT_OF_MEMORY, LimitedMemory, PlainNet, task_of
from tests.laws.support.tasks import assert_same, rows, session_of, snapshot, with_batchnorm

OPTIONS: dict[str, Any] = {
    "max_steps": 5,
    "batch_size": 16,
    "micro_batch_size": "fit",
    "logging": {"every": "1 step"},
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test its own cache of found sizes."""
    monkeypatch.setenv("SURESTEP_CACHE_DIR", str(tmp_path / "cache"))


def open_fitted(folder, memory, task=None, callbacks=(), **more: Any) -> Session:
    task = task or task_of(memory, net=PlainNet)
    return session_of(task, folder, callbacks=[memory, *callbacks], **OPTIONS | more)


def sizes_of(run: surestep.Run) -> list[tuple[int, int]]:
    events = run.events()
    return [(e["step"], e["size"]) for e in events if e["event"] == "micro_batch"]


def test_sizes_are_recorded_before_the_step_is_taken_again(tmp_path, capsys):
    class Reads(LimitedMemory):
        recorded: list[Any] = []

        def use(self, place: str, count: int) -> None:
            if self.ran_out and place == "forward":
                self.recorded += [sizes_of(run)] if not self.recorded else []
            super().use(place, count)

    memory = Reads({2: 8})
    with open_fitted(tmp_path / "run", memory, logging={"progress": "plain"}) as session:
        run = session.run
        list(session.steps())
    assert memory.recorded == [[(1, 16), (2, 8)]]
    summary = surestep.runs(tmp_path)[0]
    assert summary.micro_batch_size == 8
    assert "5 of 5, micro-batches of 8" in _row(summary)
    assert "micro-batches of 8" in _row(replace(summary, step=None))
    facts = dict(describe_numbers(run, "run", load_records(run.path))["facts"])
    assert facts["micro-batch size"] == "16 from step 1 on, 8 from step 2 on (memory ran out)"
    points = [point for event in run.events() for point in read_points(event)]
    sizes = [
        (p.step, p.values["micro_batch_size"]) for p in points if "micro_batch_size" in p.values
    ]
    assert sizes == [(1, 16), (2, 8)]
    events = [e for e in session.run.events() if e["event"] == "micro_batch"]
    assert events[0]["why"] == "by the estimated memory of a step"
    assert events[1] == {
        **{"event": "micro_batch", "time": events[1]["time"], "why": "memory ran out"},
        **{"step": 2, "size": 8, "before": 16, "error": str(OUT_OF_MEMORY[0])},
    }
    assert (
        "Step 2 ran out of memory in micro-batches of 16: it is taken again in micro-batches of 8, "
        "as are the steps after it."
    ) in capsys.readouterr().err


class Watched(Dataset):
    """Notes which gradients exist when the first sample is read after memory ran out."""

    def __init__(self, memory: LimitedMemory) -> None:
        self.memory, self.model, self.left = memory, nn.Module(), list[str]()
        self.rows, self.seen = rows(55), False

    def __len__(self) -> int:
        return 55

    def __getitem__(self, index: int) -> Any:
        if self.memory.ran_out and not self.seen:
            self.seen = True
            named = self.model.named_parameters()
            self.left += [name for name, parameter in named if parameter.grad is not None]
        return self.rows[0][index], self.rows[1][index]


def test_gradients_are_released_before_the_batch_is_read_again(tmp_path):
    memory = LimitedMemory({3: 8}, "backward")
    data = Watched(memory)
    task = task_of(memory, net=PlainNet, train=data)
    data.model = task.model
    with open_fitted(tmp_path / "run", memory, task) as session:
        for result in session.steps():
            if result.step == 3:
                break
    assert (data.seen, data.left) == (True, [])


def test_first_batch_that_runs_out_starts_in_smaller_micro_batches(tmp_path):
    class Large(nn.Linear):
        def forward(self, x):
            if len(x) > 5:
                raise OUT_OF_MEMORY[1]
            return super().forward(x)

    task = surestep.Task(Large(10, 3), nn.CrossEntropyLoss(), rows(55))
    with session_of(task, tmp_path / "run", **OPTIONS) as session:
        list(session.steps())
    event = next(e for e in session.run.events() if e["event"] == "micro_batch")
    assert (event["step"], event["size"]) == (1, 4)
    assert event["why"] == "the first batch ran out of memory in micro-batches of 16"


def test_one_sample_that_does_not_fit_ends_the_run(tmp_path):
    memory = LimitedMemory({2: 0})
    with open_fitted(tmp_path / "run", memory) as session:
        with pytest.raises(OutOfMemoryError, match="in step 2"):
            list(session.steps())
        assert session.state.progress.step == 1
    assert sizes_of(session.run) == [(1, 16), (2, 8), (2, 4), (2, 2), (2, 1)]


class FailsInTheMiddle(torch.optim.SGD):
    """Updates one parameter, and then has no memory for the others."""

    fails = False

    @torch.no_grad()
    def step(self, closure=None):
        if self.fails:
            self.param_groups[0]["params"][0].add_(1)
            raise OUT_OF_MEMORY[0]
        return super().step(closure)


def test_update_that_runs_out_is_not_taken_again(tmp_path):
    memory = LimitedMemory({})
    task = task_of(memory, net=PlainNet, optimizer=lambda p: FailsInTheMiddle(p, lr=0.1))
    with open_fitted(tmp_path / "run", memory, task) as session:
        for result in session.steps():
            if result.step == 2:
                break
        session.optimizer.fails = True
        with pytest.raises(OutOfMemoryError, match="may have changed some of the weights: resume"):
            next(session.steps())
    assert sizes_of(session.run) == [(1, 16)]


@pytest.mark.slow("trains runs to compare them")
def test_average_that_runs_out_is_not_taken_again(tmp_path, monkeypatch):
    memory = LimitedMemory({})
    with open_fitted(tmp_path / "run", memory, average={"kind": "ema"}) as session:
        next(steps := session.steps())

        def update(*_: Any) -> None:
            raise OUT_OF_MEMORY[0]

        monkeypatch.setattr(session.state.average, "update", update)
        with pytest.raises(OutOfMemoryError, match="ran out in the update"):
            next(steps)
    assert sizes_of(session.run) == [(1, 16)]


@pytest.mark.slow("trains runs to compare them")
@pytest.mark.parametrize("hook", ["on_batch", "on_backward", "on_step"])
def test_callback_that_runs_out_of_memory_is_not_the_step(tmp_path, hook):
    class Greedy(surestep.Callback):
        pass

    def call(self, state, *_):
        if state.progress.step >= 2:
            raise MemoryError("of the callback")

    takes = {"on_batch": lambda self, state, batch: call(self, state)}
    takes["on_backward"] = lambda self, state: call(self, state)
    takes["on_step"] = lambda self, state, result: call(self, state)
    greedy = type("Greedy", (surestep.Callback,), {hook: takes[hook]})()
    session = open_fitted(tmp_path / "run", LimitedMemory({}), callbacks=[greedy])
    with pytest.raises((MemoryError, OutOfMemoryError), match="of the callback"), session:
        list(session.steps())
    assert sizes_of(session.run) == [(1, 16)]


def test_hook_that_updates_weights_in_the_backward_ends_the_run(tmp_path):
    memory = LimitedMemory({2: 8}, "backward")
    task = task_of(memory, net=PlainNet)
    with open_fitted(tmp_path / "run", memory, task) as session:
        next(steps := session.steps())  # in the first step, it would count as the forward's
        bias = session.model.outer.bias

        def move(module: nn.Module, grads: Any) -> None:
            with torch.no_grad():
                bias.mul_(0.5)

        session.model.outer.register_full_backward_pre_hook(move)
        with pytest.raises(OutOfMemoryError, match="A hook changed weights"):
            next(steps)
    assert sizes_of(session.run) == [(1, 16)]


@pytest.mark.slow("trains runs to compare them")
def test_other_error_of_the_step_again_ends_the_run(tmp_path):
    class Fails(LimitedMemory):
        def use(self, place: str, count: int) -> None:
            if self.ran_out and place == "forward":
                raise RuntimeError("shapes do not match")
            super().use(place, count)

    with open_fitted(tmp_path / "run", memory := Fails({2: 8})) as session:
        with pytest.raises(RuntimeError, match="shapes do not match"):
            list(session.steps())
        assert session.state.progress.step == 1
    assert memory.batches == 2


@pytest.mark.slow("trains runs to compare them")
def test_step_that_is_interrupted_while_it_is_taken_again_can_be_resumed(tmp_path):
    class Interrupted(LimitedMemory):
        def use(self, place: str, count: int) -> None:
            if self.ran_out and place == "forward":
                raise KeyboardInterrupt
            super().use(place, count)

    with open_fitted(tmp_path / "whole", LimitedMemory({2: 8})) as whole:
        list(whole.steps())
    shutil.rmtree(tmp_path / "cache")
    interrupted = open_fitted(tmp_path / "run", Interrupted({2: 8}))
    with pytest.raises(KeyboardInterrupt), interrupted as session:
        list(session.steps())
    with open_fitted(tmp_path / "run", LimitedMemory({})) as session:
        list(session.steps())
    assert_same(snapshot(session), snapshot(whole))


def test_full_disk_ends_the_run_before_the_step_is_taken_again(tmp_path, monkeypatch):
    memory = LimitedMemory({2: 8})
    with open_fitted(tmp_path / "run", memory) as session:
        next(steps := session.steps())

        def fsync(_: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("surestep.record.events.os.fsync", fsync)
        with pytest.raises(RunError, match="No space left"):
            next(steps)
        monkeypatch.undo()
    assert memory.ran_out == 1


def test_batch_statistics_end_the_run_with_the_size_to_set(tmp_path, capsys):
    memory = LimitedMemory({2: 8})

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = with_batchnorm()

        def forward(self, x):
            outputs = self.inner(x)
            if self.training:
                memory.use("forward", len(x))
            return outputs

    task = surestep.Task(Normed(), nn.CrossEntropyLoss(), rows(64))
    with open_fitted(tmp_path / "run", memory, task, logging={"progress": "plain"}) as session:
        assert "splitting changes the update here (batch statistics are the micro-batch's)" in (
            session.plan.reason("micro_batch_size")
        )
        assert "Smaller micro-batches would change the update (batch statistics are" in (
            capsys.readouterr().err
        )
        with pytest.raises(OutOfMemoryError, match="Set micro_batch_size=8 if the update may"):
            list(session.steps())
    assert sizes_of(session.run) == [(1, 16)]


def test_own_batches_of_train_step_are_rejected(tmp_path):
    session = open_fitted(tmp_path / "run", LimitedMemory({}))
    with pytest.raises(ConfigError, match="gets your own micro-batches"), session:
        session.train_step([rows(8)])


@pytest.mark.slow("trains runs to compare them")
def test_size_that_is_set_has_no_event_and_takes_no_step_again(tmp_path):
    memory = LimitedMemory({2: 8})
    session = open_fitted(tmp_path / "run", memory, micro_batch_size=16)
    with pytest.raises(OutOfMemoryError), session:
        list(session.steps())
    assert sizes_of(session.run) == []
    assert memory.ran_out == 1


@pytest.mark.slow("trains runs to compare them")
def test_next_run_of_the_recipe_starts_with_the_size_that_was_found(tmp_path):
    with open_fitted(tmp_path / "first", LimitedMemory({2: 8})) as session:
        list(session.steps())
    with open_fitted(tmp_path / "second", LimitedMemory({})) as session:
        assert session.plan.micro_batch_size == 8
        assert "an earlier run of this recipe on this machine found it" in (
            session.plan.reason("micro_batch_size")
        )
    for other in ({"batch_size": 17}, {"optim": {"name": "sgd", "lr": 0.1}}):
        with open_fitted(tmp_path / next(iter(other)), LimitedMemory({}), **other) as session:
            assert session.plan.micro_batch_size > 8


DAMAGED = (b"", b"{", b"eight", b"8.5", b"0", b"-8", b"8 9", b"\xff\x00", b"8" * 9999)


@pytest.mark.slow("trains runs to compare them")
@pytest.mark.parametrize("content", [*DAMAGED, None])
def test_damaged_entry_is_ignored(tmp_path, content):
    with open_fitted(tmp_path / "first", LimitedMemory({2: 8})) as session:
        list(session.steps())
    (entry,) = (tmp_path / "cache" / "fit").iterdir()
    path = entry.with_name(entry.name.removesuffix("-training"))
    assert load_sizes(path) == FoundSizes(training=8)
    entry.unlink()
    entry.mkdir() if content is None else entry.write_bytes(content)
    with open_fitted(tmp_path / "second", memory := LimitedMemory({2: 8})) as session:
        assert session.plan.micro_batch_size == 16
        list(session.steps())
    assert memory.ran_out == 1
    assert entry.is_dir() or load_sizes(path).training == 8


def test_size_is_found_again_for_other_data_and_other_limits(tmp_path, monkeypatch):
    def locate(x: torch.Tensor, val: torch.Tensor) -> Path:
        model = nn.Sequential(nn.AdaptiveAvgPool1d(4), nn.Linear(4, 2))
        y = torch.zeros(8, dtype=torch.int64)
        task = surestep.Task(model, nn.CrossEntropyLoss(), (x, y), val=(val, y))
        return locate_sizes(plan_task(task, surestep.Config(**OPTIONS)), TaskOrigin())

    short, long = torch.zeros(8, 16), torch.zeros(8, 64)
    usual = locate(short, short)
    assert locate(short.clone(), torch.ones(8, 16)) == usual
    paths = {usual, locate(long, short), locate(short, long)}
    for limits in ((2**30, None, None), (None, 2**30, None), (None, None, 2**30)):
        monkeypatch.setattr(found_sizes, "read_limits", lambda limits=limits: limits)
        paths.add(locate(short, short))
    assert len(paths) == 6


def test_processes_that_store_at_the_same_time_lose_no_size(tmp_path, monkeypatch):
    path, load = tmp_path / "fit" / "key", found_sizes.load_sizes
    with monkeypatch.context() as patch:

        def interfere(temporary: Path, *_: Any, **__: Any) -> None:
            patch.undo()
            store_sizes(path, evaluation=4)  # by another process, before this one has replaced
            temporary.write_bytes(b"8")

        patch.setattr(Path, "write_text", interfere)
        store_sizes(path, training=8)
    assert load(path) == FoundSizes(training=8, evaluation=4)


def test_size_that_cannot_be_stored_is_reported_once(tmp_path):
    (tmp_path / "cache").write_bytes(b"")  # where the folder should be
    with open_fitted(tmp_path / "run", LimitedMemory({2: 8, 3: 4})) as session:
        list(session.steps())
    assert sizes_of(session.run) == [(1, 16), (2, 8), (3, 4)]
    notices = [event["text"] for event in session.run.events() if event["event"] == "notice"]
    (notice,) = [text for text in notices if "will not start with the size" in text]
    assert f"{tmp_path / 'cache' / 'fit'} (Not a directory)" in notice
    assert "Set SURESTEP_CACHE_DIR" in notice


@pytest.mark.slow("trains runs to compare them")
def test_run_that_started_keeps_its_sizes_whatever_other_runs_find(tmp_path):
    with open_fitted(tmp_path / "run", LimitedMemory({})) as session:
        next(session.steps())
        session.save()
    with open_fitted(tmp_path / "other", LimitedMemory({2: 8})) as session:
        list(session.steps())
    with open_fitted(tmp_path / "run", LimitedMemory({})) as session:
        assert session.plan.micro_batch_size == 16
        assert "this run uses it from step 1 on" in session.plan.reason("micro_batch_size")
        list(session.steps())
    assert sizes_of(session.run) == [(1, 16)]


@pytest.mark.parametrize(
    ("allocated", "reserved", "said"),
    [
        (60, 100, "40 B of 100 B was reserved and not allocated (fragmentation): set PYTORCH_CUDA"),
        (95, 100, None),
        (None, None, None),
    ],
)
def test_fragmented_memory_is_told_from_need(
    tmp_path, monkeypatch, capsys, allocated, reserved, said
):
    """What the CUDA allocator holds at the error is written by a stub: this is a CPU."""
    held = {"error": "", "allocated": allocated, "reserved": reserved}
    monkeypatch.setattr(fitted_steps, "describe_memory", lambda error, device: held)
    memory = LimitedMemory({2: 8})
    with open_fitted(tmp_path / "run", memory, logging={"progress": "plain"}) as session:
        list(session.steps())
    shown = capsys.readouterr().err
    assert "Step 2 ran out of memory in micro-batches of 16" in shown
    assert ("fragmentation" in shown) is (said is not None)
    assert said is None or said in shown


def test_start_is_what_the_estimate_allows(tmp_path, monkeypatch):
    monkeypatch.setattr(estimates, "find_largest_micro_batch", lambda planned, limit: 7)
    with open_fitted(tmp_path / "run", LimitedMemory({})) as session:
        assert session.plan.batch_layout == "16 = 2 micro-batches x 6 + 4"
        assert "fit: by the estimated memory of a step" in session.plan.reason("micro_batch_size")


@pytest.mark.parametrize(
    ("room", "limit"), [(1000, 900), (None, sys.maxsize)], ids=["known", "not known"]
)
def test_start_fits_in_what_the_host_has_available(monkeypatch, room, limit):
    limits = []
    monkeypatch.setattr(fit_memory, "read_host_memory", lambda: SimpleNamespace(room=room))
    monkeypatch.setattr(
        estimates, "find_largest_micro_batch", lambda planned, limit: limits.append(limit)
    )
    planned = plan_task(task_of(LimitedMemory({})), surestep.Config(**OPTIONS))
    fit_memory.find_start(planned, TaskOrigin())
    assert limits == [limit]


@pytest.mark.slow("trains runs to compare them")
def test_estimate_that_is_not_known_starts_with_all_of_a_batch(tmp_path, monkeypatch):
    def fail(planned: Any, limit: int) -> int:
        raise ConfigError("The memory of a step is not known.")

    monkeypatch.setattr(estimates, "find_largest_micro_batch", fail)
    with open_fitted(tmp_path / "run", LimitedMemory({})) as session:
        assert session.plan.reason("micro_batch_size").startswith("fit: all of a batch; halved")
        shown = str(session.plan)
    assert "what a step needs of memory: The memory of a step is not known." in shown


def test_estimated_split_that_changes_the_update_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(estimates, "find_largest_micro_batch", lambda planned, limit: 4)
    task = surestep.Task(with_batchnorm(), nn.CrossEntropyLoss(), rows(64))
    with pytest.raises(ConfigError, match="Set micro_batch_size=4 if the update may change"):
        session_of(task, tmp_path / "run", **OPTIONS)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow("trains runs to compare them")
def test_evaluated_samples_do_not_depend_on_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(estimates, "find_largest_micro_batch", lambda planned, limit: 4)
    task = task_of(LimitedMemory({}), net=PlainNet, val=rows(40))
    with session_of(task, tmp_path / "run", **OPTIONS, limit_val_batches=2) as session:
        assert session.plan.validation_batch_size == 16
        assert session.plan.micro_batch_size == 4
