from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from surestep.base.errors import DataError, TaskError
from surestep.engine.batch import (
    MicroBatch,
    batch_size_of,
    count_samples_in,
    flatten_tensors,
    map_tensors,
    move,
    split_batch,
    zero_loss,
)
from surestep.engine.data.collated import count_batches, count_collated

X, Y, Z = torch.zeros(5, 2), torch.ones(5), torch.full((5, 3), 2.0)
Pair = namedtuple("Pair", "a b")


def test_pair_is_input_and_targets():
    assert split_batch((X, Y)) == ((X,), {}, Y)


def test_last_element_of_a_longer_tuple_is_the_targets():
    assert split_batch([X, Z, Y]) == ((X, Z), {}, Y)


@pytest.mark.parametrize("key", ["target", "targets", "label", "labels", "y"])
def test_targets_of_a_dict_are_found_by_key(key):
    args, kwargs, targets = split_batch({"x": X, "mask": Z, key: Y})
    assert (args, dict(kwargs)) == ((), {"x": X, "mask": Z})
    assert targets is Y


@pytest.mark.parametrize("batch", [{"x": X}, {"x": X, "y": Y, "label": Y}], ids=["none", "two"])
def test_dict_with_no_or_several_target_keys_is_rejected(batch):
    with pytest.raises(DataError, match=r"keys \[.*'x'.*\].*Set Task\(inputs=lambda"):
        split_batch(batch)


@pytest.mark.parametrize("batch", [X, (X,), "text"], ids=["tensor", "single", "text"])
def test_batch_without_targets_is_rejected(batch):
    with pytest.raises(DataError, match=r"A batch is a .* Let the dataset return \(x, y\)"):
        split_batch(batch)


def test_batch_size_is_the_length_of_the_first_tensor():
    assert batch_size_of({"words": ["a"], "deep": [(X, Y)]}) == 5


@pytest.mark.parametrize("batch", ["text", torch.tensor(1.0), []], ids=["text", "scalar", "empty"])
def test_batch_without_a_batch_dimension_is_rejected(batch):
    with pytest.raises(DataError, match=r"no tensor with a batch dimension.*collate_fn"):
        batch_size_of(batch)


def test_nested_tensors_are_found_at_any_depth():
    assert flatten_tensors({"a": [X, (Y, {"b": Z})], "c": 1}) == [X, Y, Z]


def test_move_preserves_the_structure_of_a_batch():
    batch = {"a": [X, (Y,)], "b": Pair(X, "text"), "c": 3}
    moved = move(batch, torch.device("meta"))
    assert all(tensor.device.type == "meta" for tensor in flatten_tensors(moved))
    assert type(moved["b"]) is Pair
    assert (moved["b"].b, moved["c"], type(moved["a"][1])) == ("text", 3, tuple)


@dataclass(frozen=True)
class Found:
    logits: torch.Tensor
    note: str = "free"


def test_map_tensors_preserves_container_types():
    kept = OrderedDict(a=X)
    changed = map_tensors({"one": Found(X), "two": [kept, Pair(X, 3)]}, lambda each: each + 1)
    assert type(changed["two"][0]) is OrderedDict
    assert changed["one"].note == "free"
    assert torch.equal(changed["one"].logits, X + 1)
    assert torch.equal(changed["two"][0]["a"], X + 1)
    assert torch.equal(changed["two"][1].a, X + 1)
    assert not X.any()
    assert len(flatten_tensors(changed)) == 3


def test_zero_loss_of_a_dataclass_has_zero_gradients():
    leaf = X.clone().requires_grad_()
    zero_loss(Found(leaf * 2)).backward()
    assert torch.equal(leaf.grad, torch.zeros_like(X))


def test_read_only_mapping_becomes_a_dict():
    changed = map_tensors(MappingProxyType({"a": X}), lambda each: each + 1)
    assert type(changed) is dict
    assert torch.equal(changed["a"], X + 1)


def test_zero_loss_of_nonfinite_outputs_is_zero():
    weight = torch.ones(3, requires_grad=True)
    masked = (2 * weight).masked_fill(torch.tensor([False, True, False]), -torch.inf)
    for outputs in (masked, {"a": masked, "b": (masked.sum(),)}):
        nothing = zero_loss(outputs)
        assert nothing.item() == 0
        weight.grad = None
        nothing.backward(retain_graph=True)
        assert torch.equal(weight.grad, torch.zeros(3))


def counted(*tensors, **more):
    """Count the samples of a ready batch of tensors of these shapes; the last is the targets."""
    *inputs, targets = map(torch.zeros, tensors)
    micro = MicroBatch(tuple(inputs), {}, targets, 0, 1, 0, is_ready=True, **more)
    return count_samples_in(micro, (*inputs, targets))


def samples_of(*shapes, count, empty=(), unread=()):
    """Make samples of tensors of these shapes; some are None, and of some the tensors are empty."""
    full = tuple(map(torch.zeros, shapes))
    some = [tuple(x[:0] for x in full) if i in empty else full for i in range(count)]
    return [None if i in unread else one for i, one in enumerate(some)]


@pytest.mark.parametrize(
    ("shapes", "samples"),
    [
        ([(7, 2), (7,)], 7),
        ([(7, 2), (19,)], 7),  # joined labels
        ([(5, 7, 2), (5, 7)], 7),  # time first
        ([(30, 2), (2, 40), (30,)], 7),  # nodes and edges of graphs
        ([(5, 2), (5,)], 5),  # 2 were left out
        ([(5, 7), (5,)], 5),
    ],
)
def test_samples_are_those_that_were_collated_unless_some_were_left_out(shapes, samples):
    batch = tuple(map(torch.zeros, shapes))
    assert count_collated(samples_of((3,), (), count=7), batch) == samples


@pytest.mark.parametrize(
    ("given", "shapes", "samples"),
    [
        (samples_of((3,), (2,), count=7, unread=[1, 4]), [(5, 3), (10,)], 5),  # joined labels
        (samples_of((3,), (2,), count=7, unread=[1, 4]), [(7, 3), (14,)], 7),  # replaced
        (samples_of((2, 3), (2,), count=7, unread=[1]), [(2, 6, 3), (2, 6)], 6),  # time first
        (samples_of((1, 3), (1,), count=7, empty=[1, 4]), [(5, 3), (5,)], 7),  # all are joined
        ([np.zeros((rows, 3)) for rows in (1, 0, 1, 0)], [(2, 3)], 4),
        (["a", "b", None], [(2, 9), (2,)], 2),
        (["a", "b", None], [(2, 3), (3,)], 2),  # one has something else in its rows
        ([None, None], [(2, 9)], 2),  # collate_fn makes the data
    ],
)
def test_samples_that_could_not_be_read_do_not_count(given, shapes, samples):
    assert count_collated(given, tuple(map(torch.zeros, shapes))) == samples


def test_batches_of_a_loader_are_made_by_the_function_that_it_has_now():
    loader = DataLoader(torch.arange(4), 2)
    loader._iterator = object()  # of its persistent workers, which do not count
    for collate in (torch.stack, lambda given: -torch.stack(given)):
        loader.collate_fn = collate
        found = count_batches(loader)
        assert count_batches(loader) is found
        assert found._iterator is None
        assert loader.collate_fn is collate
        sign = int(collate([torch.tensor(1)]))
        assert [(batch.tolist(), samples) for batch, samples in found] == [
            ([0, sign], 2),
            ([2 * sign, 3 * sign], 2),
        ]
    assert count_batches([1, 2]) == [1, 2]


def test_samples_that_inputs_leaves_out_do_not_count():
    read = torch.zeros(7, 5, 3), torch.zeros(7, 5)

    def found(x, y, raw=read):
        return count_samples_in(MicroBatch((x,), {}, y, 0, 7, 0), raw)

    assert found(*read) == 7
    assert found(*(x[:4] for x in read)) == 4
    assert found(read[0][:4], torch.zeros(4, 7)) == 4
    assert found(*(x.transpose(0, 1) for x in read)) == 7  # time comes first
    # One of them has something else in its rows.
    assert found(read[0][:4], read[1][:4], (*read, torch.zeros(2))) == 4
    assert found(torch.zeros(4, 3), torch.zeros(4), (torch.zeros(4, 3), torch.zeros(4))) == 7


@pytest.mark.parametrize(
    ("shapes", "samples"),
    [
        ([(7, 5, 3), (7, 5)], 7),
        ([(4, 5, 3), (4, 5)], 4),
        ([(5, 7, 3), (5, 7)], 7),  # time first
        ([(7, 5, 3), (31,)], 7),  # joined labels
        ([(35, 3), (35,)], 7),
        ([(4, 5, 3), (6, 5)], 7),
        ([(1, 5, 3), (1, 5)], 1),
    ],
)
def test_inputs_and_collate_fn_leave_out_the_same_samples(shapes, samples):
    x, y = made = tuple(map(torch.zeros, shapes))
    assert count_collated(samples_of((5, 3), (5,), count=7), made) == samples
    read = torch.zeros(7, 5, 3), torch.zeros(7, 5)
    assert count_samples_in(MicroBatch((x,), {}, y, 0, 7, 0), read) == samples


def test_samples_of_a_ready_batch_are_its_rows_if_they_are_not_counted():
    assert counted((7, 2), (7,), ()) == 7
    assert counted((7, 2), (19,), collated=7) == 7
    with pytest.raises(
        TaskError, match=r"tensors of 19 and 7 rows.*items=lambda batch: len\(batch\[0"
    ):
        counted((7, 2), (19,))
    assert counted((7, 4, 2), (7, 3)) == counted((7, 7), (7, 7)) == 7
    for shapes in ([(7, 4, 2), (7, 4)], [(7, 4)]):  # time may come first
        with pytest.raises(
            TaskError, match=r"7 rows and 4 columns.*len\(batch\[0\]\)\), or batch\[0\]\.shape\[1"
        ):
            counted(*shapes)
    with pytest.raises(TaskError, match=r"has no tensor, .*lambda batch: batch\.num_graphs\)"):
        count_samples_in(MicroBatch((), {}, None, 0, 1, 0, is_ready=True), object())
