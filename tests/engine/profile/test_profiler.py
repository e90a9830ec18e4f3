import json
import re
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

import surestep
from surestep.base.errors import ConfigError
from surestep.engine.profile import profiler
from surestep.engine.profile.profiler import peak_flops
from surestep.engine.step import loop, part, step_log
from surestep.trainer.fit import fit
from tests import tiny
from tests.parts import add_part


def events(run, kind):
    return [each for each in run.events() if each["event"] == kind]


def profiled(folder, steps="3:5", **said):
    options = {"profile": steps, "logging": {"every": "1 step"}, "max_steps": 6, **said}
    return tiny.fit(folder / "run", {"train": tiny.data(64)}, **options)


def test_trace_contains_the_operations_of_the_profiled_steps(tmp_path):
    run = profiled(tmp_path)
    trace = json.loads((run.path / "profile" / "trace-3-5.json").read_text())
    names = [each.get("name") for each in trace["traceEvents"]]
    backwards = [
        name for name in names if name == "autograd::engine::evaluate_function: TanhBackward0"
    ]
    assert len(backwards) == 3


def test_summary_has_the_ten_costliest_operations_and_the_speed(tmp_path):
    run = profiled(tmp_path)
    text = (run.path / "profile" / "operations-3-5.txt").read_text()
    operations, _, parts = text.partition("operation ")[2].partition("\n\n")
    rows = operations.splitlines()[1:]
    assert len(rows) == 10
    assert re.search(r"^RecordSteps +\d+\.\d\d +\d+\.\d%$", parts, re.M)
    costs = [float(row[53:62]) for row in rows]
    assert costs == sorted(costs, reverse=True)
    assert "waiting for data: " in text
    assert "samples a second: " in text
    assert "of the device's peak: not known" in text
    (told,) = events(run, "notice")
    assert text.strip() in told["text"]
    assert told["step"] == 5


def test_flops_are_counted_in_the_step_before(tmp_path):
    """Two layers: forward, weight gradients, and the input gradient of the second layer."""
    found = []

    class Look(surestep.Callback):
        def on_step(self, state, result):
            found.append(next(c for c in session.loop.parts if hasattr(c, "_flops"))._flops)

    said = {"profile": "2:2", "max_steps": 2}
    with tiny.prepare(tmp_path / "run", {"train": tiny.data(64)}, **said) as session:
        add_part(session, Look())
        list(session.steps())
    first, second = 2 * 8 * tiny.FEATURES * 8, 2 * 8 * 8 * tiny.CLASSES
    assert found[-1] == 2 * first + 3 * second


def test_callback_with_an_attribute_label_is_listed_by_its_class(tmp_path):
    class Looks(surestep.Callback):
        label = None

        def on_step(self, state, result):
            return None

    parts = {"train": tiny.data(64)}
    with tiny.prepare(tmp_path / "run", parts, profile="2:3", max_steps=4) as session:
        add_part(session, Looks())
        list(session.steps())
    text = (session.run.path / "profile" / "operations-2-3.txt").read_text()
    assert re.search(r"^Looks +[\d.]+ +[\d.]+%$", text, re.MULTILINE)


def test_time_of_a_part_does_not_include_the_parts_that_it_calls(tmp_path, monkeypatch):
    now = 0.0

    class TakesLong(surestep.Callback):
        def on_evaluate(self, state, metrics):
            nonlocal now
            now += 5.0

    monkeypatch.setattr(part, "time", SimpleNamespace(perf_counter=lambda: now))
    with tiny.prepare(tmp_path, {"val": tiny.data(3)}, max_steps=3) as session:
        add_part(session, TakesLong())
        seconds, _ = session.loop.parts.time()
        fit(session)
    assert seconds["TakesLong"] == 5.0
    assert seconds["ScheduledEvaluation"] == 0.0


def test_profiled_run_is_bitwise_identical_to_an_unprofiled_run(tmp_path):
    weights = []
    for steps in (None, "2:4"):
        parts = {"model": tiny.model(dropout=0.5)}
        said = {} if steps is None else {"profile": steps}
        with tiny.prepare(tmp_path / str(steps), parts, **said) as session:
            list(session.steps())
            weights.append(tiny.weights(session.model))
    assert torch.equal(*weights)


def test_annotations_are_not_listed_as_operations(tmp_path):
    """Torch annotates the optimizer's step and data loading in a trace."""
    text = (profiled(tmp_path).path / "profile" / "operations-3-5.txt").read_text()
    assert "Optimizer.step" not in text
    assert "aten::" in text


class CopyInThreads(nn.Linear):
    """A model that starts collectives in threads of gloo, which take milliseconds each."""

    def forward(self, x):
        source = torch.ones(5_000_000)
        copies = [torch.empty_like(source)]
        self.works = [dist.all_gather(copies, source, async_op=True) for _ in range(10)]
        return super().forward(x)


def test_collectives_have_ended_when_the_profiler_stops(tmp_path, monkeypatch):
    """A thread that still wrote into the records of the profiler would crash the process."""
    model, completed = CopyInThreads(tiny.FEATURES, tiny.CLASSES), []

    class Recorded(profiler.profile):
        def __exit__(self, *error):
            completed.extend(work.is_completed() for work in model.works)
            super().__exit__(*error)

    monkeypatch.setattr(profiler, "profile", Recorded)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        dist.barrier()  # a thread has its name once it has run
        tiny.fit(tmp_path / "run", {"model": model}, profile="2:2", max_steps=2)
    finally:
        dist.destroy_process_group()
    assert completed == [True] * 10


@pytest.mark.parametrize(("stop", "told"), [(3, "4-5"), (5, None)])
def test_resumed_run_profiles_the_remaining_steps(tmp_path, capsys, stop, told):
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


def test_profiled_steps_beyond_the_run_are_rejected(tmp_path):
    with pytest.raises(ConfigError, match="profile='5:9' goes beyond the run of 6 steps"):
        profiled(tmp_path, "5:9")


@pytest.mark.parametrize("steps", ["5", "5:3", "0:3", "a:b", ":"])
def test_invalid_range_of_steps_is_rejected(steps):
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
def test_peak_flops_are_looked_up_by_device_name(device, precision, peak):
    assert peak_flops(device, precision) == peak


class Clock:
    """A clock that only advances when a test sets it."""

    now = 0.0

    def __call__(self):
        return self.now


class SlowDataset:
    """A dataset that takes one second for each sample."""

    def __init__(self, clock):
        self.clock = clock

    def __len__(self):
        return 32

    def __getitem__(self, index):
        self.clock.now += 1
        return torch.zeros(tiny.FEATURES), index % tiny.CLASSES


class SlowModel(nn.Linear):
    """A model that takes two seconds for a batch."""

    def forward(self, x):
        self.clock.now += 2
        return super().forward(x)


def test_data_wait_time_is_measured(tmp_path, monkeypatch):
    clock, model = Clock(), SlowModel(tiny.FEATURES, tiny.CLASSES)
    model.clock = clock
    watch = SimpleNamespace(perf_counter=clock, monotonic=time.monotonic)
    for module in (loop, step_log):
        monkeypatch.setattr(module, "time", watch)
    run = tiny.fit(tmp_path / "slow", {"model": model, "train": SlowDataset(clock)}, epochs=1)
    assert run.status["data_wait_s"] == 32
    assert run.status["seconds"] == 32 + 2 * 4  # batches of 8


class OutOfMemoryInTraining(nn.Linear):
    """A model that runs out of memory from its third training step on."""

    calls = 0

    def forward(self, x):
        self.calls += self.training
        if self.calls > 2:
            torch.empty(2**55)
        return super().forward(x)


def test_memory_use_is_saved_when_memory_runs_out(tmp_path):
    model = OutOfMemoryInTraining(tiny.FEATURES, tiny.CLASSES)
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


def test_memory_use_is_saved_in_a_custom_loop_too(tmp_path):
    model = OutOfMemoryInTraining(tiny.FEATURES, tiny.CLASSES)
    with (
        pytest.raises(surestep.SurestepError, match="Memory ran out in step 3"),
        tiny.prepare(tmp_path / "run", {"model": model}) as session,
    ):
        list(session.steps())
    assert (tmp_path / "run" / "out-of-memory-step-3.json").exists()


class OutOfMemoryInEvaluation(nn.Linear):
    """A model that runs out of memory in evaluation after `enough` calls."""

    enough = 0

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.calls = []  # a number would be restored after each evaluation

    def forward(self, x):
        self.calls += [x.shape] * (not self.training)
        if len(self.calls) > self.enough:
            torch.empty(2**55)
        return super().forward(x)


def test_out_of_memory_error_names_the_evaluation(tmp_path):
    model = OutOfMemoryInEvaluation(tiny.FEATURES, tiny.CLASSES)
    model.enough = 3  # the first-batch check also calls the model
    parts = {"model": model, "val": tiny.data(32)}
    said = {"validation": {"every": "2 steps", "batch_size": 16}}
    with pytest.raises(surestep.SurestepError, match="in the evaluation after step") as caught:
        tiny.fit(tmp_path / "run", parts, **said)
    assert "smaller validation.batch_size than 16" in str(caught.value)
    assert next((tmp_path / "run").glob("out-of-memory-evaluation-*.json"))


def test_out_of_memory_error_names_the_first_batch(tmp_path):
    with pytest.raises(surestep.SurestepError, match="ran out at the first batch") as caught:
        tiny.fit(tmp_path / "run", {"model": OutOfMemoryInEvaluation(tiny.FEATURES, tiny.CLASSES)})
    assert "smaller micro_batch_size than 8 ('fit' finds one" in str(caught.value)


def test_out_of_memory_error_for_one_sample_names_no_smaller_size(tmp_path):
    model = OutOfMemoryInEvaluation(tiny.FEATURES, tiny.CLASSES)
    with pytest.raises(surestep.SurestepError, match="1 sample does not fit: use") as caught:
        tiny.fit(tmp_path / "run", {"model": model}, micro_batch_size=1)
    assert "micro_batch_size" not in str(caught.value)


def test_other_errors_are_not_reported_as_out_of_memory(tmp_path):
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
