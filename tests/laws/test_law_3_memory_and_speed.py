"""Law 3 for options of memory and speed: numbers and parameter names stay the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import surestep
from surestep.base.errors import ConfigError
from surestep.engine.profile.step_memory import StepMemory
from surestep.trainer.memory import estimate_step
from surestep.trainer.planning import PreparedTask, plan_task
from tests.laws.support.plain import distance
from tests.laws.support.tasks import assert_same, rows, session_of, snapshot
from tests.needs import needs_compiler

Folder = Callable[[], Path]
OPTIONS: dict[str, Any] = {"max_steps": 6, "batch_size": 16, "data": {"drop_last": True}}
CHOICES = ["on", "every 2", "blocks.0 blocks.2", "blocks.*"]


class Block(nn.Module):
    """A residual block with everything that a second forward could corrupt."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)
        self.inner = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(dropout))
        self.outer = nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(self.inner(self.norm(x)))


class Net(nn.Module):
    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(10, 16)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(3))
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.head = nn.Linear(10, 3 * 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.first(x)[:, None, None].expand(-1, 2, 4, -1).chunk(3, dim=-1)
        return self.head(nn.functional.scaled_dot_product_attention(q, k, v).mean((1, 2)))


def trained(model: nn.Module, folder: Path, train: Any = None, **options: Any) -> dict[str, Tensor]:
    task = surestep.Task(model, nn.CrossEntropyLoss(), train or rows(64))
    with session_of(task, folder, **OPTIONS | options) as session:
        for _ in session.steps():
            pass
        session.save()
        return snapshot(session)


def planned(model: nn.Module, **options: Any) -> PreparedTask:
    task = surestep.Task(model, nn.CrossEntropyLoss(), rows(64))
    return plan_task(task, surestep.Config(**OPTIONS | options))


def measured(model: nn.Module, **options: Any) -> StepMemory:
    return estimate_step(planned(model, **options))


def check_recomputed(folder: Folder, choice: str) -> None:
    """Compare weights, moments and statistics bit for bit, with dropout."""
    usual = trained(Net(), folder())
    assert_same(usual, trained(Net(), folder(), activation_checkpointing=choice))


@pytest.mark.parametrize("choice", CHOICES)
def test_run_with_recomputation_equals_one_that_stores_activations(folder, choice):
    check_recomputed(folder, choice)


def test_blocks_are_recomputed_in_the_backward_only(folder):
    model, calls = Net(), []
    for block in model.blocks:
        block.inner[0].register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    task = surestep.Task(model, nn.CrossEntropyLoss(), rows(64), rows(16))
    with session_of(task, folder(), activation_checkpointing="every 2", **OPTIONS) as session:
        calls.clear()
        next(session.steps())
        assert len(calls) == 3 + 2  # three blocks; the first and the third are recomputed
        calls.clear()
        session.evaluate()
        assert len(calls) == 3
    assert "forward" not in vars(model.blocks[0])


def test_activation_memory_with_recomputation_is_measured():
    kept = [
        measured(Net(), activation_checkpointing=setting).kept
        for setting in ("on", "every 2", "off")
    ]
    assert kept[0] < kept[1] < kept[2]


def test_measuring_memory_changes_nothing():
    model = Net()
    held = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    measured(model, activation_checkpointing="on")
    assert_same(held, model.state_dict())
    assert torch.equal(state, torch.get_rng_state())


def test_measured_activations_of_a_linear_layer_are_what_autograd_saves():
    """Autograd saves the output of ReLU; the output of the model and the loss are kept too."""
    model = nn.Sequential(nn.Linear(10, 40), nn.ReLU(), nn.Linear(40, 3))
    log_softmax = 16 * 3 * 4  # saved by cross-entropy
    found = measured(model)
    scalars = 3 * 4  # its total weight, its value and its sum over the batch
    expected = {"1": 16 * 40 * 4, "2": 16 * 3 * 4, "loss": log_softmax + scalars}
    assert found.by_module == expected


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [("blocs.*", "matches no module"), ("first nowhere", "'nowhere' matches no module")],
)
def test_name_that_matches_no_module_is_rejected(folder, choice, sentence):
    with pytest.raises(ConfigError, match=sentence):
        trained(Net(), folder(), activation_checkpointing=choice)


def test_model_without_blocks_is_rejected_with_the_names_to_type(folder):
    model = nn.Sequential(nn.Linear(10, 8), nn.Linear(8, 3))
    with pytest.raises(ConfigError, match=r"has none\. Name modules: 0, 1"):
        trained(model, folder(), activation_checkpointing="on")
    trained(model, folder(), activation_checkpointing="0")


@pytest.mark.parametrize("backend", ["flash", "math"])
def test_attention_uses_the_requested_backend(folder, backend):
    seen = measured(Attending(), sdpa_backend=backend).attention
    assert [name.split("_")[0] for name in seen] == [backend]
    assert measured(Attending()).attention
    assert not measured(Net()).attention
    trained(Attending(), folder(), sdpa_backend=backend)


@pytest.mark.parametrize("backend", ["flash", "math"])
def test_attention_of_a_recomputed_block_uses_the_requested_backend(folder, backend):
    settings = {"sdpa_backend": backend}
    usual = trained(nn.Sequential(Attending()), folder(), **settings)
    again = nn.Sequential(Attending())
    assert_same(usual, trained(again, folder(), activation_checkpointing="0", **settings))


def test_activation_memory_is_measured_with_a_teacher():
    loss, teacher = surestep.losses.distillation(), nn.Linear(10, 3)
    task = surestep.Task(nn.Linear(10, 3), loss, rows(64), teacher=teacher)
    found = estimate_step(plan_task(task, surestep.Config(**OPTIONS)))
    assert not found.not_known
    assert found.kept > 0
    assert teacher.training


def test_channels_last_applies_to_model_and_images(folder):
    class Conv(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 3)
            self.strides: set[bool] = set()

        def forward(self, x: Tensor) -> Tensor:
            self.strides.add(x.is_contiguous(memory_format=torch.channels_last))
            return self.head(self.conv(x).relu().mean((2, 3)))

    generator = torch.Generator().manual_seed(0)
    images = torch.randn(64, 3, 5, 5, generator=generator)
    data = (images, torch.randint(0, 3, (64,), generator=generator))
    usual, ours = Conv(), Conv()
    trained(usual, folder(), data)
    trained(ours, folder(), data, channels_last=True)
    assert (usual.strides, ours.strides) == ({False}, {True})
    assert ours.conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert distance(usual, ours) <= 1e-6


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_matmul_precision_is_set_and_restored(folder, precision):
    seen = []
    model = Net()
    model.register_forward_hook(lambda *_: seen.append(torch.get_float32_matmul_precision()))
    before = torch.get_float32_matmul_precision()
    trained(model, folder(), matmul_precision=precision)
    assert set(seen) == {precision}
    assert torch.get_float32_matmul_precision() == before


@pytest.fixture
def quick_compiler(monkeypatch):
    """Make torch.compile use a backend that needs no C++ compiler and no time."""
    torch._dynamo.reset()
    own, calls = torch.compile, []

    def quick(call: Callable[..., Any], **options: Any) -> Any:
        calls.append((type(call.__wrapped__.__self__).__name__, options))
        return own(call, backend="aot_eager")

    monkeypatch.setattr(torch, "compile", quick)
    yield calls
    torch._dynamo.reset()


def test_compiled_run_equals_an_eager_run_and_preserves_names(folder, quick_compiler):
    run = folder()
    eager, ours = Net(dropout=0.0), Net(dropout=0.0)
    trained(eager, folder())
    trained(ours, run, compile="reduce-overhead")
    assert quick_compiler == [("Net", {"mode": "reduce-overhead"})]
    assert distance(eager, ours) <= 1e-6
    assert ours._compiled_call_impl is None
    (path,) = (run / "checkpoints").glob("*/model.safetensors")
    assert load_file(path).keys() == eager.state_dict().keys()


def test_profile_of_the_second_step_leaves_the_model_compiled(folder, quick_compiler):
    run = folder()
    trained(Net(dropout=0.0), run, compile="default", profile="2:3")
    notices = [event["text"] for event in surestep.Run(run).events() if event["event"] == "notice"]
    assert any(text.startswith("torch.compile made ") for text in notices)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # from dynamo, when it inspects an input
def test_every_block_is_compiled_separately(folder, quick_compiler):
    trained(Net(dropout=0.0), folder(), compile="default", compile_blocks=True)
    assert quick_compiler == [("Block", {"mode": None})] * 3


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # from dynamo, when it inspects an input
def test_compiled_blocks_can_be_recomputed(folder, quick_compiler, blocks):
    """The blocks have BatchNorm; a second forward must not update its statistics."""
    eager, ours = Net(dropout=0.0), Net(dropout=0.0)
    trained(eager, folder())
    settings = {"compile": "default", "compile_blocks": blocks}
    trained(ours, folder(), activation_checkpointing="on", **settings)
    assert distance(eager, ours) <= 1e-6
    for mine, theirs in zip(ours.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_compiling_again_is_reported(folder, quick_compiler):
    """The last batch of an epoch is smaller: 60 samples in batches of 16."""
    run = folder()
    options = {"compile": "default", "data": {"drop_last": False}, "logging": {"every": "1 step"}}
    trained(Net(dropout=0.0), run, rows(60), **options)
    notices = [event["text"] for event in surestep.Run(run).events() if event["event"] == "notice"]
    assert notices[0].startswith("torch.compile made ")
    assert "compiled again" in notices[1]


@pytest.mark.slow("needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")
def test_default_compiler_equals_eager(folder):
    needs_compiler("g++")
    eager, ours = nn.Linear(10, 3), nn.Linear(10, 3)
    ours.load_state_dict(eager.state_dict())
    trained(eager, folder())
    run = folder()
    trained(ours, run, compile="default")
    assert distance(eager, ours) <= 1e-6
    assert "torch.compile made 1 graphs." in notices_of(run)


def notices_of(run: Path) -> list[str]:
    return [event["text"] for event in surestep.Run(run).events() if event["event"] == "notice"]


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # from dynamo, when it inspects an input
def test_model_of_only_torch_modules_is_compiled(folder, monkeypatch):
    """Dynamo skips frames in torch.nn, and such a model has no other frames."""
    torch._dynamo.reset()
    seen, own = [], torch.compile

    def look(graph: Any, inputs: Any) -> Any:
        seen.append(graph)
        return graph

    model: nn.Module = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3))
    monkeypatch.setattr(torch, "compile", lambda call, **_: own(call, backend=look))
    trained(model, folder(), compile="default")
    torch._dynamo.reset()
    assert seen


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # from dynamo, when it inspects an input
def test_model_that_you_compiled_runs_compiled(folder):
    """The first-batch checks must not discard what dynamo compiled."""
    torch._dynamo.reset()
    seen = []
    trained(torch.compile(Net(), backend=lambda graph, _: seen.append(graph) or graph), folder())
    torch._dynamo.reset()
    assert seen


def test_model_that_you_compiled_is_saved_without_the_prefix(folder):
    run = folder()
    trained(torch.compile(Net(), backend="eager"), run)
    (path,) = (run / "checkpoints").glob("*/model.safetensors")
    assert load_file(path).keys() == Net().state_dict().keys()
    plain = Net()
    surestep.Run(run).load_model(plain, "last")
