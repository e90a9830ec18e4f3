"""`assert_laws` raises for each law that fails, with its cause, and for what was not tested."""

import pytest

from surestep.laws.proof import Proof, Row
from surestep.testing import assert_laws, laws
from tests import tiny

HOLDS = Row("check", "order", "holds", "two epochs")
FAILS = Row("law 2", "resuming", "fails", "At step 2, data differ.", cause="A cache.", mend="None.")
UNTESTED = Row("check", "workers", "not tested", "The time was over.")
IGNORED = Row("law 4", "watching", "ignored", "known")


@pytest.fixture
def proved(monkeypatch):
    """Return a function that asserts the laws of a proof, and returns its arguments."""

    def run(*rows, stopped="", **options):
        called = []
        monkeypatch.setattr(
            laws,
            "prove_laws",
            lambda *args, **more: called.append((args, more)) or Proof(rows, stopped=stopped),
        )
        assert_laws(tiny.task, tiny.config(), **options)
        return called[0]

    return run


def test_laws_that_hold_raise_nothing(proved):
    args, options = proved(HOLDS, IGNORED, UNTESTED, ignore={"watching": "known"}, minutes=3.0)
    assert args == (tiny.task, tiny.config())
    assert options["ignore"] == {"watching": "known"}
    assert (options["laws"], options["minutes"]) == (None, 3.0)


def test_law_that_fails_raises_with_its_cause(proved):
    with pytest.raises(AssertionError) as raised:
        proved(HOLDS, FAILS)
    assert str(raised.value) == (
        "law 2: resuming fails: At step 2, data differ. Usual cause: A cache. What to change: None."
    )


def test_law_that_is_named_must_have_been_tested(proved):
    with pytest.raises(AssertionError, match="workers not tested: The time was over"):
        proved(UNTESTED, laws=["workers"])


def test_ctrl_c_is_not_a_proof(proved):
    with pytest.raises(AssertionError, match="not all laws were tested"):
        proved(HOLDS, stopped="Ctrl-C")
