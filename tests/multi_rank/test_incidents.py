"""A step that is not finite, where ranks hold parts of the model or were given the batches."""

from pathlib import Path

import pytest
import torch

import surestep
from surestep.record.io import read_json
from tests.multi_rank.cases import task

OPERATIONS = ("overflows in the forward", "breaks in the backward")
LEFT = "is looked for in one process, by the replay below"


def in_parts(launch, name):
    return [torch.load(launch(2) / f"rank-{rank}.pt")["in parts", name] for rank in range(2)]


NAMED = ("poisoned", "poisoned on two", "poisoned and masked", *OPERATIONS)


@pytest.mark.parametrize("name", NAMED)
def test_ranks_with_parts_name_what_one_process_names(one, launch, name):
    first, second = in_parts(launch, name)
    for each in (first, second):
        assert each["failed"] == one[name]["failed"] == 3
        assert each["samples"] == one[name]["samples"]
        assert each["module"] == one[name]["module"]
        assert each["operation"] == one[name]["operation"]
        assert each["place"] == one[name]["place"]
    assert first["said"] == second["said"]
    found = read_json(Path(first["incident"]) / "incident.json")
    samples = [each["index"] for each in found["diagnosis"]["samples"]["samples"]]
    assert tuple(samples) == one[name]["samples"]


def test_the_operation_that_ranks_name_is_the_one_that_did_it(one):
    """What the cases above compare with."""
    found = [(one[name]["module"], one[name]["operation"]) for name in OPERATIONS]
    assert found == [("1", "aten.pow"), ("1", "aten.div")]


def test_a_model_that_talks_to_other_ranks_itself_is_left_to_a_replay(launch):
    for each in in_parts(launch, "poisoned and met"):
        assert each["failed"] == 3
        assert each["samples"] == ()
        assert LEFT in each["said"]


def own_batches(launch):
    for ranks in (2, 4):
        yield torch.load(launch(ranks) / "rank-0.pt")["own batches"]
    yield in_parts(launch, "own batches")[0]


def test_ones_own_batches_are_kept_of_all_ranks_and_their_rows_named(one, launch):
    assert one["own batches"]["rows"] == (14,)
    for found in own_batches(launch):
        assert (found["failed"], found["rows"]) == (3, (14,))
        record = read_json(Path(found["incident"]) / "incident.json")
        kept = [(each["position"], each["samples"]) for each in record["batch"]]
        assert [position for position, _ in kept] == [
            sum(samples for _, samples in kept[:index]) for index in range(len(kept))
        ]
        assert sum(samples for _, samples in kept) == 20
        assert surestep.replay(found["incident"], task()).now.samples == (14,)
