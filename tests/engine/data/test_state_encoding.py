"""States are encoded as plain JSON values and decoded as equal copies."""

import random

import numpy as np
import pytest
import torch

from surestep.engine.data.stream_state import decode_state, encode_state
from surestep.record.checkpoint import encoding
from surestep.record.io import dumps, parse_json

VALUES = [
    {"a": 1, "b": [None, True, 0.5, "text"]},
    {1: "a", (2, 3): "b"},
    {"$tuple": [1], "$array": 2},
    [{"$array": 2}, {"$pairs": [1]}],
    random.Random(3).getstate(),
    np.random.default_rng(3).bit_generator.state,
]


def saved_and_loaded(value):
    """Return a state as a checkpoint returns it."""
    tensors = {}
    record = dumps(encoding.encode("state", encode_state(value), tensors))
    return decode_state(encoding.decode_value(parse_json(record.encode()), tensors))


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_state_round_trips_through_a_checkpoint(value):
    assert saved_and_loaded(value) == value


def test_arrays_in_a_tuple_round_trip_through_a_checkpoint():
    draws = np.random.RandomState(3)
    again = np.random.RandomState(4)
    again.set_state(saved_and_loaded(draws.get_state(legacy=True)))
    assert again.random() == draws.random()


def test_tensors_and_arrays_are_decoded_as_copies():
    state = {"t": torch.arange(3), "a": np.arange(3, dtype=np.uint32)}
    kept = encode_state(state)
    state["t"] += 1
    state["a"] += 1
    found = decode_state(kept)
    assert found["t"].tolist() == found["a"].tolist() == [0, 1, 2]
    assert found["a"].dtype == np.uint32
    found["t"] += 1
    found["a"] += 1
    assert decode_state(kept)["t"].tolist() == decode_state(kept)["a"].tolist() == [0, 1, 2]


def test_numpy_scalars_are_encoded_as_numbers():
    assert encode_state({"n": np.int64(3)}) == {"n": 3}


@pytest.mark.parametrize(("value", "kind"), [({1}, "set"), ([b"x"], "bytes"), ({"a": int}, "type")])
def test_value_that_cannot_be_encoded_is_rejected_with_its_type(value, kind):
    with pytest.raises(TypeError, match=kind):
        encode_state(value)
