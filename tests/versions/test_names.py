"""Every name of torch that the package reads is in all supported releases, or has a fallback."""

import ast
import tomllib

import pytest

from surestep.base import torch_release
from tests.versions import names

PROJECT = tomllib.loads((names.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RECORD = "Run `python -m tests.versions --names` with the releases of names.json."
# Names that some supported releases lack, each with a test of what happens without it.
TESTED = {
    "torch.distributed.Store.clone": (
        "tests/engine/distributed/test_process_group.py",
        "test_ranks_share_what_they_store_over_separate_connections",
    ),
    "torch.fx._symbolic_trace.is_fx_symbolic_tracing": (
        "tests/doctor/test_private.py",
        "test_traced_function_has_no_operations_of_the_rules",
    ),
    "torch._C._autograd.SavedTensor.data": (
        "tests/engine/profile/test_saved_tensors.py",
        "test_graph_stores_what_the_hooks_of_torch_record",
    ),
    "torch.optim.Muon": (
        "tests/laws/test_law_9_rejections.py",
        "test_impossible_option_is_rejected_with_a_remedy",
    ),
    # Only skips an import of torch, which then takes longer.
    "torch.utils._python_dispatch.TorchDispatchMode._should_skip_dynamo": None,
}


def test_every_name_that_is_read_was_compared_with_all_releases():
    recorded = names.load()
    assert names.collect_names() == sorted(recorded), RECORD


def test_name_that_a_release_lacks_has_a_test_without_it():
    lacking = {name for name, releases in names.load().items() if releases}
    assert lacking == TESTED.keys()
    for path, name in filter(None, TESTED.values()):
        tree = ast.parse((names.ROOT / path).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_oldest_release_of_the_metadata_was_compared():
    assert PROJECT["optional-dependencies"]["torch"] == [f"torch>={torch_release.OLDEST}"]
    assert names.list_releases()[0] == f"{torch_release.OLDEST}.0"
    assert names.list_releases()[-1] == f"{torch_release.NEWEST}.0"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch\ntorch.nn.Linear(1, 1)", {"torch", "torch.nn.Linear", "torch.nn"}),
        ("from torch import nn as n\nn.Linear", {"torch.nn", "torch.nn.Linear"}),
        ("import torch.distributed as dist\ndist.Store", {"torch.distributed"}),
        ("find_name('torch._C:_name')\nprint('torch is')", {"torch._C._name"}),
        ("def bad_x():\n    import torch\n    torch.gone()", set()),
        ("import numpy\nnumpy.torch", set()),
    ],
)
def test_names_are_read_from_imports_attributes_and_paths(source, found):
    assert found <= names.read_names(source)
    assert names.read_names(source) <= found | {"torch.distributed.Store"}
