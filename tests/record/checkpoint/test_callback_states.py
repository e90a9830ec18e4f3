import copy
import math

import numpy as np
import pytest
import torch

from surestep.base.errors import CheckpointError
from surestep.record.checkpoint.load import unmatched_states
from surestep.record.checkpoint.reader import read_record
from tests import tiny
from tests.record.checkpoint.on_disk import load_checkpoint, save_checkpoint


class Memory:
    """Declares the value that it was given."""

    def __init__(self, value=None):
        self.value = value

    def state_dict(self):
        return self.value

    def load_state_dict(self, state):
        self.value = state


def declaring(**owners):
    state = tiny.state_of()
    state.callback_states = {name: Memory(value) for name, value in owners.items()}
    return state


def loaded(tmp_path, *names, **owners):
    other = declaring(**dict.fromkeys(names or owners))
    path = save_checkpoint(tmp_path, declaring(**owners))
    load_checkpoint(path, other)
    return other.callback_states, read_record(path)


def test_plain_callback_values_round_trip(tmp_path):
    value = {"best": 0.1, "seen": [1, "two", None, True, {"deep": []}], "": -1e300}
    declared, _ = loaded(tmp_path, memory=value, other=3)
    assert declared["memory"].value == value
    assert declared["other"].value == 3


def test_nonfinite_callback_values_round_trip(tmp_path):
    declared, _ = loaded(tmp_path, memory={"a": math.inf, "b": [-math.inf], "c": math.nan})
    value = declared["memory"].value
    assert (value["a"], value["b"]) == (math.inf, [-math.inf])
    assert math.isnan(value["c"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_callback_tensors_round_trip_from_any_device(tmp_path, dtype):
    drawn = torch.arange(6).reshape(2, 3).to(dtype)
    declared, _ = loaded(tmp_path, memory={"a": [drawn.t(), {"b/c": drawn}]}, other=drawn)
    turned, inner = declared["memory"].value["a"]
    for found, expected in ((turned, drawn.t()), (inner["b/c"], drawn)):
        assert torch.equal(found, expected)
        assert found.dtype == dtype
    assert torch.equal(declared["other"].value, drawn)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["list", "twice", "csr", "csc", "bsr", "bsc"])
def test_sparse_callback_tensors_round_trip(tmp_path, layout):
    dense = torch.tensor([[0.0, 2.0, 0.0, 0.0], [3.0, 0.0, 0.0, 4.0]])
    make = {
        "list": dense.to_sparse,
        "twice": lambda: torch.sparse_coo_tensor([[0, 0, 1], [1, 1, 3]], [1.0, 1.0, 4.0], (2, 4)),
        "csr": dense.to_sparse_csr,
        "csc": dense.to_sparse_csc,
        "bsr": lambda: dense.to_sparse_bsr((1, 2)),
        "bsc": lambda: dense.to_sparse_bsc((1, 2)),
    }[layout]
    declared, _ = loaded(tmp_path, memory={"a": make()})
    found = declared["memory"].value["a"]
    assert (found.layout, found.shape) == (make().layout, (2, 4))
    assert torch.equal(found.to_dense(), make().to_dense())


def test_numpy_callback_values_round_trip(tmp_path):
    value = {"best": np.float64(0.1), "count": np.int32(7), "means": np.arange(3.0)}
    declared, _ = loaded(tmp_path, memory=value)
    found = declared["memory"].value
    assert (found["best"], type(found["best"])) == (0.1, np.float64)
    assert (found["count"], type(found["count"])) == (7, np.int32)
    np.testing.assert_array_equal(found["means"], np.arange(3.0))


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ({"rng": np.random.default_rng()}, "'memory/rng' is a Generator"),
        ({"by": {1: 2}}, "'memory/by' is a dict whose keys are not text"),
        ([{1}], "'memory/0' is a set"),
        (np.str_("text"), "'memory' is a str_"),
    ],
)
def test_unsupported_callback_value_is_rejected(tmp_path, value, what):
    with pytest.raises(CheckpointError, match=f"{what}, which has no form in JSON"):
        save_checkpoint(tmp_path, declaring(memory=value))
    assert not list(tmp_path.glob("step-*"))


def test_added_or_missing_callback_is_reported_without_an_error(tmp_path):
    declared, record = loaded(tmp_path, "stays", "new", stays=1, gone=2)
    assert (declared["stays"].value, declared["new"].value) == (1, None)
    gone, new = unmatched_states(record, declaring(stays=None, new=None))
    assert "has a state of gone, which this run does not have" in gone
    assert "new has no state in the checkpoint" in new
    assert unmatched_states(record, declaring(stays=None, gone=None)) == []


class Refusing(Memory):
    """Loads half of a state, and raises."""

    def load_state_dict(self, state):
        self.value = state
        if state == "new":
            raise KeyError("best")


def test_callback_that_rejects_its_state_leaves_everything_unchanged(tmp_path):
    saved = tiny.state_of(seed=1, steps=3)
    saved.callback_states = {"a": Memory("new"), "b": Memory("new")}
    path = save_checkpoint(tmp_path, saved)
    state = tiny.state_of(steps=2)
    state.callback_states = {"a": Memory("old"), "b": Refusing("old")}
    before, place = tiny.weights(state.model), state.progress
    moments = copy.deepcopy(state.optimizer.state_dict())
    with pytest.raises(CheckpointError, match=r"b does not take the state .* KeyError: 'best'"):
        load_checkpoint(path, state)
    assert state.callback_states["a"].value == state.callback_states["b"].value == "old"
    assert torch.equal(tiny.weights(state.model), before)
    assert state.progress == place
    found = state.optimizer.state_dict()["state"]
    slots = [
        (i, slot, value) for i, values in moments["state"].items() for slot, value in values.items()
    ]
    assert all(torch.equal(found[i][slot], value) for i, slot, value in slots)


class InPlace(Memory):
    """Returns its own list, dict and tensor as its state, and loads into them in place."""

    def load_state_dict(self, state):
        self.value["seen"][:] = state["seen"]
        self.value["counts"].update(state["counts"])
        self.value["mean"].copy_(state["mean"])


def test_callback_that_loads_its_state_in_place_is_unchanged_if_a_later_one_fails(tmp_path):
    def value(number):
        return {"seen": [number], "counts": {"a": number}, "mean": torch.tensor([number])}

    saved, state = declaring(b="new"), declaring()
    saved.callback_states["a"] = Memory(value(2.0))
    state.callback_states = {"a": InPlace(value(1.0)), "b": Refusing("old")}
    with pytest.raises(CheckpointError, match="Nothing was loaded"):
        load_checkpoint(save_checkpoint(tmp_path, saved), state)
    assert state.callback_states["a"].value == value(1.0)


def test_model_that_rejects_its_extra_state_leaves_callbacks_unchanged(tmp_path):
    class Extra(torch.nn.Linear):
        def get_extra_state(self):
            return self.says

        def set_extra_state(self, state):
            if state != self.says:
                raise ValueError(state)

    def of(value):
        net = Extra(4, 3)
        net.says = value
        state = tiny.state_of(net)
        state.callback_states = {"a": Memory(value)}
        return state

    path, state = save_checkpoint(tmp_path, of("new")), of("old")
    with pytest.raises(CheckpointError, match="extra state of the model was rejected"):
        load_checkpoint(path, state)
    assert state.callback_states["a"].value == "old"
