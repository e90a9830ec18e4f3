"""Rules find their bad examples that train on two ranks, and nothing in the good ones."""

import json

import pytest

from surestep.doctor.rule import load_rules
from surestep.doctor.watch.report import Report
from surestep.doctor.watch.watch import WatchSession
from tests.doctor.examples import list_examples
from tests.multi_rank.torchrun import called
from tests.warm import warm_python

pytestmark = [
    pytest.mark.slow("launches several processes"),
    pytest.mark.xdist_group("examples on ranks"),
]
EXAMPLES = [made for made in list_examples() if "ranks" in made.expected]


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """The folder with the reports of each rank, and what the processes printed."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [warm_python(), "-m", "tests.doctor.watch.ranks_child", str(folder)]
    return folder, called(command)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda made: f"{made.code}-{made.name}")
def test_examples_on_two_ranks(launched, example):
    folder, done = launched
    files = [folder / f"{example.code}.{example.name}.{rank}.json" for rank in range(2)]
    assert all(file.exists() for file in files), done.stderr[-4000:]
    reports = [Report.from_json(json.loads(file.read_text())) for file in files]
    report = WatchSession(load_rules()).merge(dict(enumerate(reports)))
    assert (report.failures, report.stopped_at) == ({}, None)
    assert example.describe(report.findings) == example.expected["ranks"]
