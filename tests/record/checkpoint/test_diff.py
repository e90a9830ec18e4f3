import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from surestep.record.checkpoint.diff import differences
from surestep.record.checkpoint.reader import open_checkpoint
from tests import tiny
from tests.record.checkpoint.on_disk import save_checkpoint


def compared(tmp_path, one, other):
    states = (tiny.state_of(one, steps=0), tiny.state_of(other, steps=0))
    paths = [save_checkpoint(tmp_path / str(n), state) for n, state in enumerate(states)]
    return differences(*map(open_checkpoint, paths))


class Buffers(nn.Module):
    def __init__(self, **values):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        for name, value in values.items():
            self.register_buffer(name, value.clone())


def test_equal_checkpoints_have_no_differences(tmp_path):
    found = compared(tmp_path, tiny.model(), tiny.model())
    assert found.same
    assert found.equal == 4


def test_changed_tensor_has_its_largest_and_relative_change(tmp_path):
    before, now = torch.tensor([3.0, 4.0, 0.0]), torch.tensor([3.0, 4.0, 0.5])
    found = compared(tmp_path, Buffers(x=before, y=now), Buffers(x=now, y=now))
    (moved,) = found.changed
    assert moved == ("model", "x", 3, 1, 0.5, 0.1)
    assert (found.equal, found.same, found.values) == (2, False, [])


def test_changes_are_sorted_with_nan_first_and_then_the_largest(tmp_path):
    one = torch.ones(2)
    names = {"a": one * 2, "b": one * 9, "c": one * math.nan, "d": one, "e": -one * 3}
    found = compared(tmp_path, Buffers(**dict.fromkeys(names, one)), Buffers(**names))
    assert [change.name for change in found.changed] == ["c", "b", "e", "a"]


def test_tensors_are_equal_only_if_bitwise_identical(tmp_path):
    nan, zero = torch.tensor([math.nan]), torch.zeros(1)
    found = compared(tmp_path, Buffers(x=nan, y=zero), Buffers(x=nan.clone(), y=-zero))
    assert [change.name for change in found.changed] == ["y"]
    assert (found.changed[0].largest, found.changed[0].relative) == (0, 0)


def test_element_that_did_not_change_does_not_make_the_change_nan(tmp_path):
    before, now = (torch.tensor([math.nan, math.inf, 0.0, end]) for end in (1.0, 1.5))
    (found,) = compared(tmp_path, Buffers(x=before), Buffers(x=now)).changed
    assert (found.changed, found.largest) == (1, 0.5)


def test_every_dtype_is_compared(tmp_path):
    types = [torch.bool, torch.int64, torch.uint8, torch.bfloat16, torch.float8_e4m3fn]
    types += [torch.complex64, torch.float64]
    zeros = {f"x{n}": torch.zeros(2, 2).to(dtype) for n, dtype in enumerate(types)}
    ones = {f"x{n}": torch.ones(2, 2).to(dtype) for n, dtype in enumerate(types)}
    found = compared(tmp_path, Buffers(**zeros), Buffers(**ones))
    numbers = {(change.changed, change.largest, change.relative) for change in found.changed}
    assert numbers == {(4, 1.0, math.inf)}
    assert len(found.changed) == len(types)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_small_changes_are_measured_in_double_precision(tmp_path, dtype):
    before = torch.full((2,), 1.0, dtype=dtype)
    now = before.clone()
    now[0] += 2.0**-30 if dtype == torch.float64 else 2.0**-20
    (moved,) = compared(tmp_path, Buffers(x=before), Buffers(x=now)).changed
    assert moved.largest == (2.0**-30 if dtype == torch.float64 else 2.0**-20)
    assert moved.relative == pytest.approx(moved.largest / math.sqrt(2), rel=1e-12)


def test_tensors_of_one_side_or_of_different_shapes_are_unmatched(tmp_path):
    one, other = Buffers(x=torch.zeros(2), old=torch.zeros(0)), Buffers(x=torch.zeros(3))
    found = compared(tmp_path, one, other)
    assert found.unmatched == [
        ("model", "old", "float32 (0,)", None),
        ("model", "x", "float32 (2,)", "float32 (3,)"),
    ]


def test_changed_optimizer_options_are_listed_by_name(tmp_path):
    one, other = tiny.state_of(steps=0), tiny.state_of(steps=0)
    other.optimizer.param_groups[0]["eps"] = 0.5
    paths = [save_checkpoint(tmp_path / str(n), state) for n, state in enumerate((one, other))]
    found = differences(*map(open_checkpoint, paths))
    assert found.values == [("optimizer.model.groups.0.eps", None, 0.5)]


def changed(value):
    """Yield every copy of a value with one change in it."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from ({**value, key: other} for other in changed(item))
    elif isinstance(value, list) and value:
        for n, item in enumerate(value):
            yield from ([*value[:n], other, *value[n + 1 :]] for other in changed(item))
    else:
        yield {"new": 1} if value == {} else "another"


def test_every_value_of_the_record_is_compared(tmp_path):
    found = open_checkpoint(save_checkpoint(tmp_path, tiny.state_of()))
    for record in changed(found.record):
        (value,) = differences(found, replace(found, record=record)).values
        assert value.before != value.now


@pytest.mark.parametrize("now", [1.0, True])
def test_number_of_another_type_is_another_value(tmp_path, now):
    found = open_checkpoint(save_checkpoint(tmp_path, tiny.state_of()))
    records = [{**found.record, "metadata": {"seen": value}} for value in (1, now)]
    changes = differences(*(replace(found, record=record) for record in records)).values
    assert [(each.name, type(each.now)) for each in changes] == [("metadata.seen", type(now))]
