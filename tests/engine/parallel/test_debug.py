"""The variables of NCCL are set while the group is open, and the user's own stay."""

import os

from surestep.engine.parallel.debug import VARIABLES, nccl_debug


def test_variables_are_set_meanwhile_and_gone_after(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with nccl_debug(on=True):
        assert {name: os.environ[name] for name in VARIABLES} == VARIABLES
    assert not set(VARIABLES) & set(os.environ)


def test_what_the_user_has_set_stays(monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "TRACE")
    with nccl_debug(on=True):
        assert os.environ["NCCL_DEBUG"] == "TRACE"
    assert os.environ["NCCL_DEBUG"] == "TRACE"


def test_nothing_is_set_where_nobody_asked(monkeypatch):
    monkeypatch.delenv("NCCL_DEBUG", raising=False)
    with nccl_debug(on=False):
        assert "NCCL_DEBUG" not in os.environ
