"""The shares of a step are those of parts that sleep for known times."""

import json
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import surestep
from surestep.base.errors import ConfigError
from surestep.engine.model.precision import torch_settings
from surestep.laws.compare import compare_records
from surestep.laws.record import record_state
from surestep.trainer.build import build
from surestep.trainer.planning import plan_task
from surestep.tuning.speed import time_shares
from surestep.tuning.speed.load_times import LoadTimes, measure_loading
from surestep.tuning.speed.time_shares import STEP_PARTS, measure_shares, time_parts

SAMPLE_S, COLLATE_S, FORWARD_S, BACKWARD_S, OPTIMIZER_S = 0.002, 0.01, 0.03, 0.02, 0.016
BATCH, MICRO = 8, 4
NOW = [0.0]


def sleep(seconds):
    """Let the time of the tests pass: the machine may be busy."""
    NOW[0] += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(time, "perf_counter", lambda: NOW[0])
    monkeypatch.setattr(time_shares, "measure_peak_flops", lambda device, precision: 1e9)


class Slow(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        sleep(SAMPLE_S)
        return torch.ones(4), torch.tensor(index % 3)


def slow_collate(samples):
    sleep(COLLATE_S)
    return torch.utils.data.default_collate(samples)


class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        sleep(FORWARD_S)
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        sleep(BACKWARD_S)
        return gradient


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return Sleep.apply(self.layer(x))


def step_slowly(step):
    def slow_step(*args):
        sleep(OPTIMIZER_S)
        return step(*args)

    return slow_step


@contextmanager
def open_loop(task, **options):
    options = {"device": "cpu", "max_steps": 1000, "optim": {"name": "sgd", "lr": 0.1}} | options
    with ExitStack() as settings:
        planned = plan_task(task, surestep.Config(**options))
        settings.enter_context(torch_settings(planned.plan))
        loop = build(planned, settings, (), fresh=True).loop
        loop.attach([], notify=lambda text: None)
        steps = loop.steps()
        next(steps)
        yield loop, steps
        steps.close()


@contextmanager
def open_slow():
    task = surestep.Task(Net(), loss="multiclass", train=Slow(), collate_fn=slow_collate)
    with open_loop(task, batch_size=BATCH, micro_batch_size=MICRO) as (loop, steps):
        strategy = loop.context.strategy
        strategy.step = step_slowly(strategy.step)
        yield loop, steps


@pytest.fixture
def measured(clock):
    with open_slow() as (loop, steps):
        return measure_shares(loop, steps, count=1, rounds=3)


PARTS = {
    "data": BATCH * SAMPLE_S + BATCH / MICRO * COLLATE_S,
    "forward": BATCH / MICRO * FORWARD_S,
    "backward": BATCH / MICRO * BACKWARD_S,
    "optimizer": OPTIMIZER_S,
}


def test_every_part_has_the_time_that_it_sleeps(measured):
    others = dict.fromkeys(STEP_PARTS, 0.0)
    assert measured.parts == pytest.approx({**others, **PARTS})
    assert measured.step_s == pytest.approx(sum(PARTS.values()))
    assert measured.overhead == pytest.approx(0, abs=1e-9)


def test_overhead_of_the_timers_is_in_the_lines_above_3_percent(measured):
    text = "\n".join(replace(measured, overhead=0.031).describe())
    assert "timers made the steps that they measured 3% slower" in text
    assert "slower" not in "\n".join(replace(measured, overhead=0.029).describe())


def test_shares_of_a_real_clock_are_near(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setitem(globals(), "sleep", time.sleep)
    expected = {part: seconds / sum(PARTS.values()) for part, seconds in PARTS.items()}
    for is_last in (False, False, False, False, True):  # a busy machine may delay a sleep
        with open_slow() as (loop, steps):
            shares = measure_shares(loop, steps, count=1, rounds=1).shares
        found = {part: shares[part] for part in PARTS}
        if found == pytest.approx(expected, abs=0.1):
            break
        assert not is_last, found


def test_parts_add_up_to_a_step(measured):
    assert set(measured.parts) == set(STEP_PARTS)
    assert sum(measured.shares.values()) == pytest.approx(1)
    assert sum(measured.parts.values()) == pytest.approx(measured.step_s)


def test_loading_is_separated(measured):
    assert measured.loading == LoadTimes(
        decoding_s=0,
        samples_s=pytest.approx(BATCH * SAMPLE_S),
        collating_s=pytest.approx(BATCH / MICRO * COLLATE_S),
        copying_s=0,
    )


def test_shares_have_lines_and_json(measured):
    lines = "\n".join(measured.describe())
    assert "forward" in lines
    assert "collating" in lines
    assert json.loads(json.dumps(measured.as_dict()))["shares"]["data"] == measured.shares["data"]


def test_share_of_the_peak_is_that_of_the_operations(measured):
    # Products of (BATCH, 4) and (4, 3); the weights get a gradient, the inputs none.
    assert measured.flops == 2 * (2 * BATCH * 4 * 3)
    assert measured.is_peak_measured
    assert measured.peak_share == measured.flops / measured.step_s / measured.peak_flops


class Decoded(Dataset):
    """Decodes by a function that it imported by name."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        from PIL import Image, ImageFile  # noqa: F401

        with Image.open(self.path) as image:
            image.load()
        sleep(SAMPLE_S)
        return torch.ones(4), torch.tensor(0)


def test_decoding_is_separated_from_the_rest_of_the_dataset(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    files = pytest.importorskip("PIL.ImageFile")
    data = Decoded()
    data.path = tmp_path / "image.png"
    image.new("RGB", (8, 8)).save(data.path)
    load = files.ImageFile.load

    def slow_load(self):
        sleep(3 * SAMPLE_S)
        return load(self)

    monkeypatch.setattr(files.ImageFile, "load", slow_load)
    task = surestep.Task(nn.Linear(4, 3), loss="multiclass", train=data)
    with open_loop(task, batch_size=4) as (loop, _):
        loading, _ = measure_loading(loop.loader)
    assert loading.samples_s == pytest.approx(4 * SAMPLE_S)
    assert loading.decoding_s == pytest.approx(4 * 3 * SAMPLE_S)
    assert files.ImageFile.load is slow_load


def plain_task():
    torch.manual_seed(0)
    x, y = torch.randn(64, 4), torch.randint(0, 3, (64,))
    return surestep.Task(nn.Linear(4, 3), loss="multiclass", train=(x, y))


def test_timing_changes_no_number_and_is_removed():
    records = []
    for times in (False, True):
        with open_loop(plain_task(), batch_size=8) as (loop, steps):
            before = {**vars(loop.context.strategy)}
            for _ in range(3):
                if times:
                    with time_parts(loop):
                        next(steps)
                else:
                    next(steps)
            assert vars(loop.context.strategy).keys() == before.keys()
            records.append(record_state(loop.state))
    assert compare_records(*records) is None


def test_lines_have_the_reason_for_no_loading_time(measured):
    with open_loop(plain_task(), batch_size=8) as (loop, _):
        found, why = measure_loading(loop.loader)
    assert found is None
    text = "\n".join(replace(measured, loading=found, loading_note=why).describe())
    assert "Loading its samples: they are rows of tensors in memory." in text


def step_by_hand(manual_step):
    for micro in manual_step.micro_batches("model"):
        x, y = micro.args
        manual_step.backward(nn.functional.cross_entropy(manual_step.model(x), y), micro)
    manual_step.step("model")


def test_step_of_the_task_counts_as_forward_without_its_other_parts():
    x, y = torch.randn(64, 4), torch.randint(0, 3, (64,))
    task = surestep.Task(Net(), train=(x, y), step=step_by_hand)
    with open_loop(task, batch_size=BATCH, micro_batch_size=MICRO) as (loop, steps):
        with time_parts(loop) as timed:
            next(steps)
        seconds = timed.read()
    assert seconds["forward"] == pytest.approx(PARTS["forward"])
    assert seconds["backward"] == pytest.approx(PARTS["backward"])


def test_windows_below_one_are_rejected():
    with pytest.raises(ConfigError, match=r"count=0 .* Set 1 or more"):
        measure_shares(None, iter(()), count=0)
