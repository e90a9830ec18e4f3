"""A non-finite step on several ranks: the incident is preserved, and a replay explains it."""

from pathlib import Path

import torch

import surestep
from surestep.record.io import read_json
from tests.multi_rank.cases import data, task
from tests.multi_rank.torchrun import results_of

LEFT = "2 ranks do not look for the cause"


def in_parts(launch, name):
    return [each["in parts", name] for each in results_of(launch(2), 2)]


def test_replay_in_one_process_explains_a_step_of_sharded_ranks(one, launch):
    first, second = in_parts(launch, "poisoned on two")
    for each in (first, second):
        assert each["failed"] == one["poisoned on two"]["failed"] == 3
        assert each["place"] == one["poisoned on two"]["place"]
        assert each["samples"] == ()
        assert LEFT in each["said"]
    assert first["said"] == second["said"]
    x, y = data()
    x[[41, 59]] = torch.nan
    now = surestep.replay(first["incident"], task((x, y))).now
    assert now.samples == one["poisoned on two"]["samples"] == (41, 59)
    assert now.module == one["poisoned on two"]["module"]


def own_batches(launch):
    for ranks in (2, 4):
        yield results_of(launch(ranks), ranks)[0]["own batches"]
    yield in_parts(launch, "own batches")[0]


def test_incident_preserves_the_custom_batches_of_all_ranks(one, launch):
    assert one["own batches"]["rows"] == (14,)
    for found in own_batches(launch):
        assert (found["failed"], found["rows"]) == (3, ())
        record = read_json(Path(found["incident"]) / "incident.json")
        kept = [(each["position"], each["samples"]) for each in record["batch"]]
        assert [position for position, _ in kept] == [
            sum(samples for _, samples in kept[:index]) for index in range(len(kept))
        ]
        assert sum(samples for _, samples in kept) == 20
        assert surestep.replay(found["incident"], task()).now.samples == (14,)
