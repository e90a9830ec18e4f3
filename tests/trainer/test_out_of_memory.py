"""What a run says when memory runs out: what is in memory, what would help, and where."""

import json
import re
import resource
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import surestep
from surestep.base.errors import OutOfMemoryError
from surestep.engine import private
from surestep.engine.profile import kept_tensors, memory_use
from surestep.recipes import chars
from surestep.trainer import out_of_memory
from surestep.trainer.evaluator import evaluate_run, predict_run
from surestep.trainer.explain_memory import ExplainMemory
from surestep.trainer.out_of_memory import _describe_use
from tests import tiny
from tests.forked import fork

WEIGHTS = 4 * (tiny.FEATURES + 1) * tiny.CLASSES


def run_out() -> None:
    """Ask for more than any machine has."""
    torch.empty(2**55)


class RunsOut(nn.Linear):
    """A model that runs out of memory in its third training step, after its layer."""

    def __init__(self, enough: int = 2) -> None:
        super().__init__(tiny.FEATURES, tiny.CLASSES)
        self.calls, self.enough = [], enough  # a number would be restored

    def forward(self, x: Tensor) -> Tensor:
        outputs = super().forward(x).exp()
        self.calls += [0] * self.training
        if len(self.calls) > self.enough:
            run_out()
        return outputs


class RunsOutInEvaluation(RunsOut):
    """A model that runs out of memory in evaluation after `enough` calls."""

    def forward(self, x: Tensor) -> Tensor:
        self.calls += [0] * (not self.training)
        if len(self.calls) > self.enough:
            run_out()
        return nn.Linear.forward(self, x)


def fail(folder: Path, parts: dict | None = None, **options) -> tuple[str, dict]:
    """Return the error of a run that fails in its third step, and the file."""
    with pytest.raises(OutOfMemoryError, match=r"Memory ran out in step 3[:,] ") as caught:
        tiny.fit(folder / "run", {"model": RunsOut(), **(parts or {})}, **options)
    path = folder / "run" / "out-of-memory-step-3.json"
    assert str(path) in str(caught.value)
    return str(caught.value), json.loads(path.read_text(encoding="utf-8"))


def kept_by(found: dict) -> dict[str, tuple[int, int]]:
    """Return how many tensors each path has, and how many keep their graphs."""
    return {one["path"]: (one["count"], one["with_graph"]) for one in found["kept"]}


def test_kinds_are_counted_when_memory_runs_out(tmp_path):
    message, found = fail(tmp_path, {"train": tiny.data(64)}, optim={"lr": 0.1})
    assert found["requested"] == 2**57
    assert found["weights"] == WEIGHTS
    assert found["optimizer"] == 2 * WEIGHTS + 2 * 4
    assert found["inputs"] == 8 * (4 * tiny.FEATURES + 8)
    assert found["modules"] == {"(itself)": 8 * 4 * tiny.CLASSES}  # the output of exp
    assert found["activations"] == 8 * 4 * tiny.CLASSES
    assert found["gradients"] == 0
    assert found["host"]["resident"] > 2**20
    assert found["not_known"] == {}
    assert f"optimizer {2 * WEIGHTS + 2 * 4} B" in message
    status = surestep.Run(tmp_path / "run").status
    assert status["status"] == "failed"
    assert status["reason"] == f"OutOfMemoryError: {message.splitlines()[0]}"


def test_modules_of_a_sequential_are_named():
    use = memory_use.MemoryUse(
        torch.device("cpu"), None, modules={"0": 5, "1": 7, "2.0.a": 2, "2.1.a": 2, "": 1}
    )
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Sequential())
    (line,) = _describe_use(use, model)
    assert line == "Most activations: 1 (Tanh) 7 B, 0 (Linear) 5 B, 2.*.a 4 B."


def test_history_of_the_optimizer_is_counted():
    """As L-BFGS stores it, in lists."""
    state, cpu = tiny.state_of(), torch.device("cpu")

    def count() -> int:
        use = memory_use.measure_memory_use(
            MemoryError(), cpu, model=state.model, state=state, roots=lambda: ()
        )
        return use.kinds["optimizer"]

    before = count()
    first = next(iter(state.optimizer.state.values()))
    first["history"] = [torch.zeros(5), torch.zeros(7)]
    assert count() == before + 4 * 12


def train_in_own_loop(folder: Path) -> None:
    kept = []
    with tiny.prepare(folder, {"model": RunsOut()}) as session:
        for _ in session.steps():
            kept.append(torch.ones(100))


@pytest.fixture
def alone(monkeypatch):
    """Other test modules, whose variables may be larger, are not the user's."""
    monkeypatch.setattr(kept_tensors, "is_user_file", lambda file: file == __file__)


@pytest.mark.usefixtures("alone")
def test_variables_of_a_custom_loop_are_named(tmp_path):
    with pytest.raises(OutOfMemoryError, match="Memory ran out in step 3"):
        train_in_own_loop(tmp_path / "run")
    found = json.loads((tmp_path / "run" / "out-of-memory-step-3.json").read_text())
    assert kept_by(found)["train_in_own_loop.kept[]"] == (2, 0)


class KeepsOutputs(RunsOut):
    def __init__(self) -> None:
        super().__init__()
        self.history, self.cache = [], {}

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.Linear.forward(self, x)
        self.history.append(hidden.exp())
        self.cache["last"] = x.clone()
        return super().forward(x)


class KeepsLosses(surestep.Callback):
    def __init__(self) -> None:
        self.steps = []

    def on_step(self, state, result) -> None:
        self.steps.append({"loss": torch.ones(50)})


GLOBAL: list[Tensor] = []


def make_transform():
    closed_over = []

    def transform(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        closed_over.append(torch.ones(30))
        GLOBAL.append(torch.ones(20))
        return inputs, targets

    return transform


@pytest.mark.usefixtures("alone")
def test_tensors_that_the_user_keeps_are_named(tmp_path):
    callback = KeepsLosses()
    task = tiny.task(model=KeepsOutputs(), batch_transform=make_transform(), train=tiny.data(64))
    with pytest.raises(OutOfMemoryError) as caught:
        surestep.Trainer(task, tiny.config(), run=tmp_path / "run", callbacks=[callback]).fit()
    found = json.loads((tmp_path / "run" / "out-of-memory-step-3.json").read_text())
    kept = kept_by(found)
    assert kept["model.history[]"] == (3, 3)
    assert kept["model.cache['last']"] == (1, 0)
    assert kept["KeepsLosses.steps[]['loss']"] == (2, 0)
    assert kept["batch_transform:closed_over[]"] == (4, 0)
    assert kept["train[]"] == (2, 0)
    assert any(path.endswith("GLOBAL[]") for path in kept)
    assert re.search(
        r"  model.history\[\]: \d tensors with their graphs, .* Use .detach\(\)", str(caught.value)
    )


class Lazy:
    """An object of the user whose class cannot be read."""

    @property
    def __class__(self):
        raise ValueError("broken class")


def test_broken_object_of_the_user_does_not_hide_the_error(tmp_path):
    callback = KeepsLosses()
    callback.lazy = Lazy()
    task = tiny.task(model=RunsOut())
    with pytest.raises(OutOfMemoryError, match="Memory ran out in step 3") as caught:
        surestep.Trainer(task, tiny.config(), run=tmp_path / "run", callbacks=[callback]).fit()
    found = json.loads((tmp_path / "run" / "out-of-memory-step-3.json").read_text())
    assert found["not_known"] == {"your own tensors": "ValueError: broken class"}
    assert "Not known: your own tensors (ValueError: broken class)." in str(caught.value)
    assert found["weights"] == WEIGHTS


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (memory_use, "read_host_memory"),
        (memory_use, "find_kept"),
        (out_of_memory, "measure_memory_use"),
        (out_of_memory, "advise"),
        (out_of_memory, "write_memory_report"),
    ],
)
def test_error_of_the_explanation_does_not_hide_the_first_one(tmp_path, monkeypatch, module, name):
    def fail_again(*_, **__):
        raise MemoryError("no memory to explain")

    monkeypatch.setattr(module, name, fail_again)
    with pytest.raises(OutOfMemoryError, match=r"^Memory ran out in step 3: ") as caught:
        tiny.fit(tmp_path / "run", {"model": RunsOut()})
    assert "MemoryError: no memory to explain" in str(caught.value)
    assert "DefaultCPUAllocator" in str(caught.value.__cause__)


def test_rank_writes_a_file_of_its_own(tmp_path):
    recorder = SimpleNamespace(folder=tmp_path, owns=False)
    state, planned = tiny.state_of(), tiny.plan()
    part = ExplainMemory(planned, (), recorder, rank=1, read_size=lambda: 8)
    error = part.on_error(state, MemoryError("none left"), None)
    path = tmp_path / "out-of-memory-step-3-rank-1.json"
    assert f"More in {path}." in str(error)
    assert path.exists()
    part = ExplainMemory(planned, (), recorder, read_size=lambda: 8)
    assert "More in" not in str(part.on_error(state, MemoryError("none left"), None))


WORKER = "Caught MemoryError in DataLoader worker process 0."
NO_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB."
FIRST_LINES = {
    f"{NO_MEMORY} GPU 0 has a total capacity of 24.00 GiB": NO_MEMORY,
    f"{WORKER}\nOriginal Traceback:\nMemoryError: none left": f"{WORKER} MemoryError: none left.",
    "": "MemoryError.",
}


@pytest.mark.parametrize("text", FIRST_LINES)
def test_first_line_has_what_could_not_be_allocated(tmp_path, text):
    recorder = SimpleNamespace(folder=tmp_path, owns=False)
    part = ExplainMemory(tiny.plan(), (), recorder, read_size=lambda: 8)
    explained = part.on_error(tiny.state_of(), MemoryError(text), None)
    assert str(explained).splitlines()[0] == f"Memory ran out in step 3: {FIRST_LINES[text]}"


def test_message_is_short(tmp_path):
    message, _ = fail(tmp_path, {"model": KeepsOutputs()})
    assert len(message.splitlines()) <= 15


class FailsOnce(chars.GPT):
    """A GPT of 9 million parameters whose first training step runs out of memory."""

    def __init__(self) -> None:
        super().__init__(width=384, layers=5, heads=4, length=64)
        self.failures = []

    def forward(self, tokens: Tensor) -> Tensor:
        logits = super().forward(tokens)
        if self.training and not self.failures:
            self.failures.append(1)
            run_out()
        return logits


@pytest.mark.slow("traces steps of 9 million parameters")
def test_error_appears_soon_with_the_peaks_and_nothing_is_changed(tmp_path, monkeypatch):
    seconds, explain = [], out_of_memory.explain_memory

    def measure(*args):
        random, started = torch.get_rng_state(), time.process_time()
        explained = explain(*args)
        seconds.append(time.process_time() - started)
        assert torch.equal(torch.get_rng_state(), random)
        return explained

    monkeypatch.setattr(out_of_memory, "explain_memory", measure)
    tokens = torch.randint(0, len(chars.ALPHABET), (32, 64))
    task = surestep.Task(FailsOnce, chars.nats, (tokens, tokens), items="tokens")
    with surestep.prepare(task, tiny.config(batch_size=32), run=tmp_path / "run") as session:
        model = session.model
        weights = {name: weight.clone() for name, weight in model.state_dict().items()}
        with pytest.raises(OutOfMemoryError) as caught:
            next(session.steps())
    assert seconds[0] < 5
    peaks = re.findall(r"^  \d\. .*: ([\d.]+) MiB$", str(caught.value), flags=re.MULTILINE)
    now = float(re.search(r"\(now ([\d.]+) MiB\)", str(caught.value))[1])
    assert len(peaks) == 2
    assert all(float(peak) < now for peak in peaks)
    assert model.failures == [1]
    assert model.state_dict().keys() == weights.keys()
    assert all(torch.equal(model.state_dict()[name], weights[name]) for name in weights)


def test_evaluation_is_named(tmp_path):
    model = RunsOutInEvaluation(enough=2)  # the first-batch check also calls it
    parts = {"model": model, "val": tiny.data(32)}
    options = {"validation": {"every": "2 steps", "batch_size": 16}}
    with pytest.raises(OutOfMemoryError, match=r"in the evaluation after step \d: ") as caught:
        tiny.fit(tmp_path / "run", parts, **options)
    assert "with peaks that are not known (the first batch fails: " in str(caught.value)
    assert "  1. validation.batch_size=8, which changes no metric\n" in str(caught.value)
    assert "micro_batch_size" not in str(caught.value)
    assert len(list((tmp_path / "run").glob("out-of-memory-evaluation-*.json"))) == 1


@pytest.mark.slow("trains, evaluates and predicts")
def test_evaluation_and_prediction_of_a_finished_run_are_explained(tmp_path):
    splits = {"val": tiny.data(20), "test": tiny.data(20)}
    run = tiny.fit(tmp_path / "run", {"model": RunsOutInEvaluation(enough=99), **splits})
    task = tiny.task(model=RunsOutInEvaluation(enough=0), **splits)
    with pytest.raises(OutOfMemoryError, match="Memory ran out in the evaluation of val: "):
        evaluate_run(run, task, tiny.config(), split="val", which="last")
    with pytest.raises(OutOfMemoryError, match="Memory ran out in the prediction of test: "):
        predict_run(run, task, tiny.config())
    assert not list(run.path.glob("out-of-memory*"))


def test_first_batch_says_the_same(tmp_path):
    with pytest.raises(OutOfMemoryError, match="ran out at the first batch: ") as caught:
        tiny.fit(tmp_path / "run", {"model": RunsOutInEvaluation(enough=0)})
    assert "In memory: weights 60 B, inputs 192 B" in str(caught.value)
    assert "1. micro_batch_size=4, which changes no update ('fit' finds a size): " in str(
        caught.value
    )
    assert not (tmp_path / "run").exists()


def test_loss_that_needs_too_much_is_not_taken_for_a_broken_one(tmp_path):
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        run_out()
        return outputs.sum()

    with pytest.raises(OutOfMemoryError, match="ran out at the first batch: "):
        tiny.fit(tmp_path / "run", {"loss": loss})


class LargeSamples(torch.utils.data.Dataset):
    """A dataset whose arrays become too large for numpy."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        np.empty(2**55 if index == 19 else 1)
        return torch.zeros(tiny.FEATURES), 0


def test_memory_that_runs_out_while_data_is_read_is_explained(tmp_path):
    options = {"data": {"shuffle": False}}
    with pytest.raises(OutOfMemoryError, match="in step 3: Unable to allocate") as caught:
        tiny.fit(tmp_path / "run", {"train": LargeSamples()}, **options)
    assert "on the host (RSS)" in str(caught.value)


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


@pytest.mark.slow("imports what traces a step, in a fork")
def test_limit_of_the_address_space_is_named(tmp_path):
    def run() -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, resource.RLIM_INFINITY))
        wide = nn.Sequential(nn.Linear(tiny.FEATURES, 2**20), nn.Linear(2**20, tiny.CLASSES))
        tiny.fit(tmp_path / "run", {"model": wide, "train": tiny.data(512)}, batch_size=512)

    done = fork(tmp_path, (), run)
    assert "DefaultCPUAllocator" in done.stderr
    assert "Its address space is limited to " in done.stderr


class UpdateRunsOut(torch.optim.SGD):
    """Runs out of memory in its third step."""

    steps = 0

    def step(self, closure=None):
        self.steps += 1
        if self.steps == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().step(closure)


def test_update_that_runs_out_gets_no_advice_about_micro_batches(tmp_path):
    model = nn.Linear(tiny.FEATURES, tiny.CLASSES)
    parts = {"model": model, "optimizer": partial(UpdateRunsOut, lr=0.1)}
    message, _ = fail(tmp_path, parts)
    assert message.startswith("Memory ran out in step 3, in the update, after the backward pass: ")
    assert "micro_batch_size" not in message


UNFREEZES = (nn.Parameter, "requires_grad_"), "where layers are unfrozen"
SETS_MODES = (nn.Linear, "train"), "where modules are set to training mode"
AVERAGES = (private, "foreach_lerp_"), "in the average of the weights"


@pytest.mark.parametrize(("owner", "part"), [UNFREEZES, SETS_MODES, AVERAGES])
def test_what_runs_out_before_the_forward_pass_is_named(tmp_path, monkeypatch, owner, part):
    monkeypatch.setenv("SURESTEP_CACHE_DIR", str(tmp_path / "cache"))

    class RunOut(surestep.Callback):
        def on_step(self, state, result):
            if state.progress.step == 2:
                state.model.eval()  # so that the next step sets the mode of training
                monkeypatch.setattr(*owner, lambda *_: run_out(), raising=False)

    task = tiny.task(model=nn.Sequential(nn.Linear(tiny.FEATURES, tiny.CLASSES)))
    options = {"optim": {"groups": ["0.bias freeze='2 steps'"]}, "average": {"kind": "ema"}}
    config = tiny.config(micro_batch_size="fit", **options)
    trainer = surestep.Trainer(task, config, run=tmp_path / "run", callbacks=[RunOut()])
    with pytest.raises(OutOfMemoryError) as caught:
        trainer.fit()
    message = str(caught.value)
    assert message.startswith(f"Memory ran out in step 3, {part}, before the forward pass: ")
    assert message.endswith("and resume from the last checkpoint.")
    assert "micro_batch_size=" not in message


@pytest.mark.parametrize("place", ["forward", "update"])
def test_custom_step_that_runs_out_names_the_update_only_there(tmp_path, place):
    def step(manual_step: surestep.ManualStep) -> None:
        for micro_batch in manual_step.micro_batches("net"):
            if place == "forward" and manual_step.index == 2:
                run_out()
            x, y = micro_batch.args
            loss = nn.functional.cross_entropy(manual_step.model(x), y)
            manual_step.backward(loss, micro_batch)
        manual_step.step("net")

    net = nn.ModuleDict({"net": nn.Linear(tiny.FEATURES, tiny.CLASSES)})
    net.forward = net["net"].forward
    optimizers = {"net": partial(UpdateRunsOut, lr=0.1) if place == "update" else surestep.Optim()}
    parts = {"model": net, "loss": None, "step": step, "optimizers": optimizers}
    message, _ = fail(tmp_path, parts)
    assert ("in the update" in message) is (place == "update")
    assert ("micro_batch_size=4" in message) is (place == "forward")


def test_advice_begins_at_the_size_that_a_run_has_reached(tmp_path, monkeypatch):
    monkeypatch.setenv("SURESTEP_CACHE_DIR", str(tmp_path / "cache"))
    message, _ = fail(tmp_path, micro_batch_size="fit")
    assert "micro_batch_size=" not in message  # it has tried 1 sample
