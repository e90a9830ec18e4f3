import json
import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import ConfigError
from surestep.engine.profile.profiler import peak_flops
from surestep.engine.step import loop
from tests import tiny


def events(run, kind):
    return [each for each in run.events() if each["event"] == kind]


def profiled(folder, steps="3:5", **said):
    options = {"profile": steps, "logging": {"every": "1 step"}, "max_steps": 6, **said}
    return tiny.fit(folder / "run", {"train": tiny.data(64)}, **options)


def test_a_trace_of_those_steps_is_written_and_holds_their_operations(tmp_path):
    run = profiled(tmp_path)
    trace = json.loads((run.path / "profile" / "trace-3-5.json").read_text())
    names = [each.get("name") for each in trace["traceEvents"]]
    backwards = [
        name for name in names if name == "autograd::engine::evaluate_function: TanhBackward0"
    ]
    assert len(backwards) == 3


def test_the_table_has_the_ten_costliest_operations_and_the_speed(tmp_path):
    run = profiled(tmp_path)
    text = (run.path / "profile" / "operations-3-5.txt").read_text()
    rows = text.partition("operation ")[2].splitlines()[1:]
    assert len(rows) == 10
    costs = [float(row[53:62]) for row in rows]
    assert costs == sorted(costs, reverse=True)
    assert "waiting for data: " in text
    assert "samples a second: " in text
    assert "of the device's peak: not known" in text
    (told,) = events(run, "notice")
    assert text.strip() in told["text"]
    assert told["step"] == 5


def test_operations_are_counted_in_the_step_before(tmp_path):
    """Two layers forward, and backward by weight and by input, but for the first layer's input."""
    found = []

    class Look(surestep.Callback):
        def on_step(self, state, result):
            found.append(next(c for c in session.loop.callbacks if hasattr(c, "_flops"))._flops)

    said = {"profile": "2:2", "max_steps": 2}
    with tiny.prepare(tmp_path / "run", {"train": tiny.data(64)}, **said) as session:
        session.loop.add_callback(Look())
        list(session.steps())
    first, second = 2 * 8 * tiny.FEATURES * 8, 2 * 8 * 8 * tiny.CLASSES
    assert found[-1] == 2 * first + 3 * second


def test_a_profiled_run_is_bit_for_bit_one_that_is_not(tmp_path):
    weights = []
    for steps in (None, "2:4"):
        parts = {"model": tiny.model(dropout=0.5)}
        said = {} if steps is None else {"profile": steps}
        with tiny.prepare(tmp_path / str(steps), parts, **said) as session:
            list(session.steps())
            weights.append(tiny.weights(session.model))
    assert torch.equal(*weights)


def test_what_people_named_is_no_operation(tmp_path):
    """In a trace torch names the optimizer's step and the loading of data."""
    text = (profiled(tmp_path).path / "profile" / "operations-3-5.txt").read_text()
    assert "Optimizer.step" not in text
    assert "aten::" in text


@pytest.mark.parametrize(("stop", "told"), [(3, "4-5"), (5, None)])
def test_a_run_that_goes_on_is_watched_from_there_on(tmp_path, capsys, stop, told):
    said = {"profile": "3:5", "max_steps": 6, "logging": {"every": "1 step", "progress": "plain"}}
    for rest in (stop, 6):
        with tiny.prepare(tmp_path / "run", {"train": tiny.data(64)}, **said) as session:
            for result in session.steps():
                if result.step == rest:
                    session.save()
                    break
        if rest == stop:
            for each in (tmp_path / "run" / "profile").iterdir():
                each.unlink()
            capsys.readouterr()
    found = sorted(each.name for each in (tmp_path / "run" / "profile").iterdir())
    assert found == ([] if told is None else [f"operations-{told}.txt", f"trace-{told}.json"])
    assert ("profile='3:5' is over: the run is at step 5" in "".join(capsys.readouterr())) == (
        not told
    )


def test_steps_beyond_the_run_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="profile='5:9' goes beyond the run of 6 steps"):
        profiled(tmp_path, "5:9")


@pytest.mark.parametrize("steps", ["5", "5:3", "0:3", "a:b", ":"])
def test_what_is_no_range_of_steps_is_refused(steps):
    with pytest.raises(ConfigError, match="such as '10:15'"):
        tiny.config(profile=steps)


@pytest.mark.parametrize(
    ("device", "precision", "peak"),
    [
        ("NVIDIA H200", "bf16", 989e12),
        ("NVIDIA H100 PCIe", "fp32", 51e12),
        ("NVIDIA H100 80GB HBM3", "fp16", 989e12),
        ("Tesla T4", "bf16", None),
        ("Some other", "fp32", None),
    ],
)
def test_the_peak_of_a_device_is_known_by_its_name(device, precision, peak):
    assert peak_flops(device, precision) == peak


class Clock:
    """A clock that goes on where it is told to."""

    now = 0.0

    def __call__(self):
        return self.now


class Slow:
    """A dataset that is waited for: a second for each sample."""

    def __init__(self, clock):
        self.clock = clock

    def __len__(self):
        return 32

    def __getitem__(self, index):
        self.clock.now += 1
        return torch.zeros(tiny.FEATURES), index % tiny.CLASSES


class Thinking(nn.Linear):
    """A model that takes two seconds for a batch."""

    def forward(self, x):
        self.clock.now += 2
        return super().forward(x)


def test_waiting_for_data_is_measured(tmp_path, monkeypatch):
    clock, model = Clock(), Thinking(tiny.FEATURES, tiny.CLASSES)
    model.clock = clock
    watch = SimpleNamespace(perf_counter=clock, monotonic=time.monotonic)
    monkeypatch.setattr(loop, "time", watch)
    run = tiny.fit(tmp_path / "slow", {"model": model, "train": Slow(clock)}, epochs=1)
    assert run.status["data_wait_s"] == 32
    assert run.status["seconds"] == 32 + 2 * 4  # batches of 8


class Greedy(nn.Linear):
    """A model that wants more memory than there is, from its third training step on."""

    calls = 0

    def forward(self, x):
        self.calls += self.training
        if self.calls > 2:
            torch.empty(2**55)
        return super().forward(x)


def test_what_was_held_is_written_when_memory_runs_out(tmp_path):
    model = Greedy(tiny.FEATURES, tiny.CLASSES)
    with pytest.raises(surestep.SurestepError, match="Memory ran out in step 3") as caught:
        tiny.fit(tmp_path / "run", {"model": model}, optim={"lr": 0.1})
    assert "smaller micro_batch_size than 8" in str(caught.value)
    path = tmp_path / "run" / "out-of-memory-step-3.json"
    assert str(path) in str(caught.value)
    held = json.loads(path.read_text())
    weights = 4 * (tiny.FEATURES + 1) * tiny.CLASSES
    assert held["weights"] == weights
    assert held["optimizer"] == 2 * weights + 2 * 4
    assert held["allocated"] > 2**20
    assert surestep.Run(tmp_path / "run").status["status"] == "failed"


def test_it_is_written_in_a_loop_of_ones_own_too(tmp_path):
    model = Greedy(tiny.FEATURES, tiny.CLASSES)
    with (
        pytest.raises(surestep.SurestepError, match="Memory ran out in step 3"),
        tiny.prepare(tmp_path / "run", {"model": model}) as session,
    ):
        list(session.steps())
    assert (tmp_path / "run" / "out-of-memory-step-3.json").exists()


class Sated(nn.Linear):
    """A model that wants more memory than there is, where it is measured, from some call on."""

    calls = 0
    enough = 0

    def forward(self, x):
        self.calls += not self.training
        if self.calls > self.enough:
            torch.empty(2**55)
        return super().forward(x)


def test_an_evaluation_is_told_from_a_step(tmp_path):
    model = Sated(tiny.FEATURES, tiny.CLASSES)
    model.enough = 3  # at the start the first batch is tried
    parts = {"model": model, "val": tiny.data(32)}
    said = {"validation": {"every": "2 steps", "batch_size": 16}}
    with pytest.raises(surestep.SurestepError, match="in the evaluation after step") as caught:
        tiny.fit(tmp_path / "run", parts, **said)
    assert "smaller validation.batch_size than 16" in str(caught.value)
    assert next((tmp_path / "run").glob("out-of-memory-evaluation-*.json"))


def test_the_first_batch_says_so_too(tmp_path):
    with pytest.raises(surestep.SurestepError, match="ran out at the first batch") as caught:
        tiny.fit(tmp_path / "run", {"model": Sated(tiny.FEATURES, tiny.CLASSES)})
    assert "smaller micro_batch_size than 8" in str(caught.value)


def test_another_error_is_not_taken_for_it(tmp_path):
    class Broken(nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += self.training
            if self.calls > 2:
                raise RuntimeError("something else")
            return super().forward(x)

    with pytest.raises(RuntimeError, match="something else"):
        tiny.fit(tmp_path / "run", {"model": Broken(tiny.FEATURES, tiny.CLASSES)})
    assert not list((tmp_path / "run").glob("out-of-memory*"))
