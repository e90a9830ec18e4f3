"""The engine works with a torch that lacks the private names which it reads."""

import ast
import importlib
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch.autograd import graph, profiler
from torch.distributed import distributed_c10d

import surestep
from surestep.base.errors import ConfigError, ParallelError, SurestepError
from surestep.engine import private
from surestep.engine.data import workers
from surestep.engine.distributed.hang_monitor import GroupTimeouts
from surestep.engine.model import forward_errors
from surestep.engine.model.compile import compile_model, disable_compile, unwrap_compiled
from surestep.engine.optim import fused_adamw
from tests import tiny

NAMES = [
    *((torch, f"_foreach_{name}") for name in ("add_", "mul_", "lerp_", "copy_", "norm")),
    *((torch, f"_foreach_{name}") for name in ("clamp_min_", "clamp_max_")),
    (torch, "_debug_has_internal_overlap"),
    (graph, "_engine_run_backward"),
    (profiler, "_is_profiler_enabled"),
    (torch._C, "_current_autograd_node"),
]
PRIVATE = re.compile(r"torch(\.\w+)*\.(_C\b|_[a-z])|from torch\S* import .*\b_\w|\bnn\.\w+\._[a-z]")
DOCUMENTED = "torch.utils._python_dispatch"  # torch's documentation names this module


def train(folder):
    """Return every tensor that two runs save, which use every name that one process reads."""
    tensors = {}
    for options in ({"max_grad_norm": 0.01, "average": {"kind": "ema"}}, {"clip_value": 0.01}):
        run = folder / next(iter(options))
        tiny.fit(run, max_steps=3, **options)
        for path in sorted(run.glob("checkpoints/*/*.safetensors")):
            tensors |= {
                f"{run.name} {path.stem} {key}": tensor for key, tensor in load_file(path).items()
            }
    return tensors


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return train(tmp_path_factory.mktemp("expected"))


@pytest.fixture
def without(monkeypatch):
    """Delete a name of torch, and read the private names again."""

    def delete(owner, name):
        monkeypatch.delattr(owner, name)
        importlib.reload(private)

    yield delete
    monkeypatch.undo()
    importlib.reload(private)


@pytest.mark.parametrize(("owner", "name"), NAMES, ids=[name for _, name in NAMES])
def test_training_is_the_same_without_a_private_name(without, tmp_path, expected, owner, name):
    without(owner, name)
    found = train(tmp_path)
    assert len(found) > 20
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    ("module", "name"), [(private, "fused_adamw_"), (fused_adamw, "optimizer_module")]
)
def test_torch_steps_adamw_if_the_kernel_or_its_hooks_are_not_known(
    monkeypatch, tmp_path, expected, module, name
):
    monkeypatch.setattr(module, name, None)  # torch itself reads the names
    torch.testing.assert_close(train(tmp_path), expected, rtol=0, atol=0)


def test_data_workers_load_without_the_class_that_watches_them(without, monkeypatch):
    without(torch._C, "_remove_worker_pids")
    private.remove_worker_pids(0)
    monkeypatch.setattr(private, "WorkerIterator", None)  # torch itself reads the name
    loader = workers.Loader(torch.arange(4), num_workers=1)
    assert [batch.tolist() for batch in loader] == [[0], [1], [2], [3]]


def test_open_process_group_is_rejected_if_its_store_is_not_shown(without):
    without(distributed_c10d, "_get_default_store")
    with pytest.raises(ParallelError, match="Remove init_process_group"):
        private.get_default_store()


def test_timeouts_stay_if_torch_cannot_change_them(without):
    without(distributed_c10d, "_set_pg_timeout")
    timeouts = GroupTimeouts(9.0, 1.0)
    timeouts.groups = [None]
    timeouts.use_steady_timeout()
    assert timeouts.seconds == 1.0


def test_graphs_are_not_counted_if_torch_does_not_report_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", None)
    assert private.count_graphs() == 0


def test_modules_are_not_compiled_in_place_without_their_private_names(monkeypatch):
    compiled = torch.nn.Module()  # as torch.compile wraps a module
    compiled.add_module("_orig_mod", torch.nn.Linear(1, 1))
    monkeypatch.setattr(private, "can_compile_in_place", False)
    with pytest.raises(ConfigError, match="Set compile=False"):
        unwrap_compiled(compiled)
    with (
        pytest.raises(ConfigError, match="Set compile=False"),
        compile_model(torch.nn.Linear(1, 1), SimpleNamespace(compile="default"), in_blocks=False),
    ):
        pass
    with disable_compile(torch.nn.Linear(1, 1)):
        pass


def test_error_of_a_forward_names_no_module_without_the_call_of_modules(monkeypatch, tmp_path):
    parts = {"model": torch.nn.Linear(3, 3)}
    with pytest.raises(SurestepError, match=r"module 'Linear'|module Linear|\(Linear\)"):
        tiny.fit(tmp_path / "named", parts)
    monkeypatch.setattr(forward_errors, "_CALL", None)
    with pytest.raises(SurestepError) as failed:
        tiny.fit(tmp_path / "unnamed", parts)
    assert "Linear" not in str(failed.value)


def test_private_names_of_torch_are_read_in_one_module():
    folder = Path(surestep.__file__).parent
    found = {
        str(path.relative_to(folder)): lines
        for package in ("engine", "record", "trainer", "tracking", "tuning", "recipes", "cli")
        for path in (folder / package).rglob("*.py")
        if PRIVATE.search(path.read_text(encoding="utf-8"))
        and (lines := [line for line in code_lines(path) if PRIVATE.search(line)])
    }
    assert found.keys() == {"engine/private.py"}, found


def code_lines(path):
    """Return the lines of a file without comments, docstrings and a module that torch documents."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""
    return [line for line in ast.unparse(tree).splitlines() if DOCUMENTED not in line]
