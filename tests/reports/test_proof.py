"""The line of a page about a proof: which laws hold, on what, and whether that is stale."""

import pytest

from surestep.reports.proof import describe_proof

PROOF = {
    "recipe": "abc",
    "git": {"commit": "0123456789abcdef", "dirty": True},
    "versions": {"surestep": "1.0", "torch": "2.13.0+cpu"},
    "rows": [
        {"name": "resuming", "status": "holds"},
        {"name": "order", "status": "holds"},
        {"name": "watching", "status": "ignored"},
        {"name": "workers", "status": "does not apply"},
    ],
}
CONFIG = {"recipe": {"sha256": "abc"}}
ENVIRONMENT = {"git": PROOF["git"], "packages": {"surestep": "1.0", "torch": "2.13.0"}}
TEXT = (
    "resuming, order: hold; watching: fail and are ignored; "
    "commit 0123456789ab with changed files, surestep 1.0, torch 2.13.0+cpu"
)


def test_laws_are_shown_with_commit_and_versions():
    assert describe_proof(PROOF, CONFIG, ENVIRONMENT) == TEXT


@pytest.mark.parametrize(
    ("config", "environment", "changed"),
    [
        ({"recipe": {"sha256": "other"}}, ENVIRONMENT, "the code of the recipe"),
        (CONFIG, ENVIRONMENT | {"git": None}, "the commit"),
        (CONFIG, ENVIRONMENT | {"packages": {"torch": "2.14.0"}}, "the version of torch"),
    ],
)
def test_proof_of_other_code_is_stale(config, environment, changed):
    text = describe_proof(PROOF, config, environment)
    assert text == f"{TEXT}; stale since {changed} changed"


@pytest.mark.parametrize("proof", [{}, {"rows": 3}, {"rows": ["x"]}])
def test_run_without_a_proof_has_no_line(proof):
    assert describe_proof(proof, CONFIG, ENVIRONMENT) == ""
