"""What ranks found in their shares is put together, and survives its way between them."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from surestep.engine.diagnose.bisect import BisectResult, SampleRef
from surestep.engine.diagnose.diagnose import Diagnosis
from surestep.engine.diagnose.per_rank import ForbidCollectives, merge_diagnoses, to_json
from tests import tiny
from tests.engine.incident.broken import data, diagnosed, model


def found(*positions: int, known: bool = True) -> Diagnosis:
    samples = tuple(SampleRef(each, each) for each in positions)
    bad = ("loss",) if positions else ()
    return Diagnosis(1.0, bad, None, BisectResult(samples, "alone it is not finite", known, 8), {})


def test_what_one_rank_found_arrives_as_it_was(tmp_path):
    parts = {"model": model(torch.log), "train": data(0.0), "loss": nn.CrossEntropyLoss()}
    with tiny.prepare(tmp_path / "run", parts, batch_size=8, seed=3) as session:
        seen = diagnosed(session)
    assert seen.cause is not None
    assert seen.cause.module == "0"
    both = merge_diagnoses([to_json(seen), to_json(None)])
    of_one = replace(seen, outputs=None)  # a replay takes no share, but the whole batch
    assert to_json(both) == to_json(of_one)  # NaN is not equal to itself


def test_samples_of_all_ranks_are_named():
    both = merge_diagnoses([to_json(found(6)), to_json(found()), to_json(found(2))])
    assert both is not None
    assert [each.position for each in both.samples.samples] == [2, 6]
    assert both.samples.how == "each alone is not finite"
    assert both.samples.known


def test_a_rank_that_could_not_look_is_told_of():
    both = merge_diagnoses([to_json(None, "OSError: gone"), to_json(found(6))])
    assert both is not None
    assert not both.samples.known
    assert "rank 0 could not look (OSError: gone)" in both.samples.how


def test_nothing_is_known_where_each_share_is_finite():
    assert merge_diagnoses([to_json(found()), to_json(None, "RuntimeError: no")]) is None


def test_no_other_rank_is_waited_for():
    value = torch.ones(2)
    with ForbidCollectives(), pytest.raises(RuntimeError, match="waits for other ranks"):
        torch.ops._c10d_functional.all_reduce(value, "sum", "0")
