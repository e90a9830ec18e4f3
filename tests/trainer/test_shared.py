"""What ranks can share of a Task is checked at the start."""

import json
from types import SimpleNamespace

import pytest
from torch.utils.data import IterableDataset

from surestep.base.errors import DataError
from surestep.trainer.planning import plan_task
from surestep.trainer.rank_consistency import check_shared
from tests import tiny


class Stream(IterableDataset):
    """Samples one by one."""

    def __iter__(self):
        return iter(zip(*tiny.data(), strict=True))


@pytest.mark.parametrize("part", ["val", "test"])
def test_a_stream_to_measure_by_that_begins_otherwise_on_a_rank_is_refused(part):
    planned = plan_task(tiny.task(**{part: Stream()}), tiny.config())
    said = []

    def all_gather_text(text):
        said.append(text)
        return [text, other if other is not None else text]

    world, other = SimpleNamespace(size=2, all_gather_text=all_gather_text), None
    check_shared(world, planned.task, planned.plan)
    other = json.dumps({part: "other"})
    assert json.loads(said[0]).keys() == {part}
    with pytest.raises(DataError, match=f"The {part} stream begins with other samples on rank 1"):
        check_shared(world, planned.task, planned.plan)
