"""Reports of several ranks: how they reach rank 0, and how they become one."""

import json

from surestep.doctor.finding import Finding
from surestep.doctor.watch.ranks import Ranks
from surestep.doctor.watch.report import Report, merge_reports


def make_finding(line, since, message="m"):
    evidence = {"since_step": since}
    return Finding("SS101", "missing-zero-grad", "error", "a.py", line, 1, message, evidence)


def test_same_line_is_one_finding_with_its_ranks():
    reports = {
        1: Report([make_finding(3, 2, "of rank 1")], 9, {}),
        0: Report([make_finding(3, 4, "of rank 0"), make_finding(7, 1)], 8, {"SS203": "no"}),
    }
    merged = merge_reports(reports, [make_finding(9, 5, "of both")])
    assert [(found.line, found.message, found.evidence) for found in merged.findings] == [
        (7, "m", {"since_step": 1, "ranks": [0]}),
        (3, "of rank 0", {"since_step": 2, "ranks": [0, 1]}),
        (9, "of both", {"since_step": 5}),
    ]
    assert (merged.steps, merged.failures, merged.ranks) == (9, {"SS203": "no"}, 2)


def test_report_can_be_sent_to_another_process():
    report = Report([make_finding(3, 2)], 9, {"SS203": "no"}, {"SS904": 3})
    assert Report.from_json(json.loads(json.dumps(report.to_json()))) == report


class Store(dict):
    """The store of a launcher; the late report arrives after rank 0 has asked for it once."""

    set, get = dict.__setitem__, dict.__getitem__

    def check(self, keys):
        found = keys[0] in self
        if not found:
            self.late()
        return found


def test_report_of_an_attempt_before_the_restart_is_not_taken_for_the_present_one(monkeypatch):
    """The launcher keeps its store when it starts the processes again."""

    def ranks(rank, attempt):
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "WORLD_SIZE": "2"}
        elastic = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": attempt}
        return Ranks.read({**address, **elastic, "RANK": rank})

    store = Store()
    store.late = lambda: ranks("1", "1").collect(Report([], 9, {}), is_error=False)
    monkeypatch.setattr(Ranks, "_connect", lambda *_: store)
    ranks("1", "0").collect(Report([], 3, {}), is_error=True)
    found = ranks("0", "1").collect(Report([], 8, {}), is_error=False)
    assert {rank: report.steps for rank, report in found.items()} == {0: 8, 1: 9}
