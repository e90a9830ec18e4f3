import warnings

import pytest

from surestep.engine.distributed.communicator import ALONE, Communicator
from surestep.engine.distributed.warning_dedup import WarningDeduplicator, dedupe_warnings


class Said:
    """Stands for the store of the ranks."""

    def __init__(self):
        self.texts = set()

    def claim_message(self, say):
        is_new = say not in self.texts
        self.texts.add(say)
        return is_new


@pytest.fixture
def shown(monkeypatch):
    texts = []
    monkeypatch.setattr(warnings, "showwarning", lambda text, *_: texts.append(str(text)))
    return texts


def world(rank, watch):
    made = Communicator(rank=rank, size=2)
    made.watch = watch
    return made


def test_the_first_rank_to_warn_shows_it(shown):
    watch, ranks = Said(), [WarningDeduplicator(), WarningDeduplicator()]
    for rank, warned in enumerate(ranks):
        warned.flush(world(rank, watch))
    for warned in reversed(ranks):
        warned(UserWarning("both"), UserWarning, "f.py", 1)
    ranks[0](UserWarning("own"), UserWarning, "f.py", 2)
    assert shown == ["rank 1: both", "own"]


def test_a_warning_waits_until_the_ranks_know_of_each_other(shown):
    warned = WarningDeduplicator()
    warned(UserWarning("early"), UserWarning, "f.py", 1)
    assert shown == []
    warned.flush(world(0, Said()))
    assert shown == ["early"]


def test_what_waits_is_shown_where_the_ranks_never_meet(shown, monkeypatch):
    before = warnings.showwarning
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "1")
    with dedupe_warnings() as warned:
        warned(UserWarning("early"), UserWarning, "f.py", 1)
        assert shown == []
    assert shown == ["early"]
    assert warnings.showwarning is before


def test_one_process_changes_nothing(shown):
    before = warnings.showwarning
    with dedupe_warnings() as warned:
        assert warned is None
        assert warnings.showwarning is before
    assert ALONE.claim_message("anything")
