"""`surestep prove`: its table, its messages and exit codes, with proofs that train nothing."""

import json

import pytest

from surestep.laws import prove, prove_data
from surestep.laws.proof import Proof, Row

HOLDS = Row("law 4", "watching", "holds", "saving: after every step, and never", seconds=1.0)
FAILS = Row(
    *("law 2", "resuming", "fails", "At step 5, data (input) differ."),
    cause="A cache.",
    mend="Cache nothing.",
    step=5,
    kind="data",
    value="input of micro-batch 1, tensor 1",
)


@pytest.fixture
def proved(surestep, recipe, monkeypatch):
    """Return a function that runs the command with a proof, and notes how it is called."""

    def run(*words, rows=(HOLDS,), stopped=""):
        called = []

        def fake(make_task, config, **options):
            called.append((make_task, config, options))
            versions = {"surestep": "1.0"}
            return Proof(rows, 10, 32, seconds=3.0, versions=versions, stopped=stopped)

        monkeypatch.setattr(prove, "prove_laws", fake)
        answer = surestep("prove", recipe(), *words)
        return answer, called

    return run


def test_table_shows_every_law(proved):
    answer, [(make_task, config, options)] = proved("--optim.lr", "0.5", "--steps", "7")
    assert answer.code == 0, answer.err
    assert "law 4: watching" in answer.out
    assert "saving: after every step" in answer.out
    assert "10 steps a run, 32 samples an epoch; 3 s; surestep 1.0." in answer.out
    assert (config.optim.lr, options["steps"], options["laws"]) == (0.5, 7, None)
    assert make_task().metrics.keys() == {"accuracy"}


def test_law_that_fails_is_explained_and_ends_with_1(proved):
    answer, _ = proved(rows=(HOLDS, FAILS))
    assert answer.code == 1
    for text in (
        "differs first at step 5: data (input of micro-batch 1, tensor 1)",
        "law 2: resuming fails",
        "At step 5, data (input) differ.",
        "A cache.",
        "Cache nothing.",
    ):
        assert text in answer.out


def test_ctrl_c_prints_what_is_known(proved):
    answer, _ = proved(stopped="Ctrl-C")
    assert answer.code == 130
    assert "Stopped by Ctrl-C. This is what is known so far." in answer.out
    assert "law 4: watching" in answer.out


def test_json_has_all_of_a_row(proved):
    answer, _ = proved("--json", rows=(FAILS,))
    assert answer.code == 1
    (row,) = json.loads(answer.out)["rows"]
    assert (row["step"], row["kind"], row["mend"]) == (5, "data", "Cache nothing.")


def test_reasons_are_passed_by_name(proved):
    _, [(_, _, options)] = proved("--ignore", "resuming=a = b", "--ignore", "order=known")
    assert options["ignore"] == {"resuming": "a = b", "order": "known"}


def test_data_alone_are_proved(surestep, recipe, monkeypatch):
    called = []

    def fake(make_task, config, **options):
        called.append((config, options))
        return Proof([HOLDS], samples=32, seconds=3.0)

    monkeypatch.setattr(prove_data, "prove_data_of", fake)
    answer = surestep("prove", recipe(), "--data", "--minutes", "1")
    assert answer.code == 0, answer.err
    assert "32 samples an epoch; 3 s" in answer.out
    assert "steps a run" not in answer.out
    assert called[0][1] == {"minutes": 1.0}


def test_law_without_a_reason_is_rejected(proved):
    answer, called = proved("--ignore", "resuming")
    assert answer.code == 2
    assert "--ignore resuming has no reason" in answer.err
    assert not called


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--steps", "11"), "steps=11 is not a number of steps to compare. Set 2 to 10"),
        (("--samples", "1"), "samples=1 are too few"),
        (("--laws", ","), "laws is empty, so nothing is proved. Known: same again, watching"),
        (("--minutes", "0"), "minutes=0 is not a time"),
        (("--laws", "resume"), "There is no law 'resume'. Did you mean 'resuming'?"),
        (("--ignore", "low=x"), "There is no law 'low'"),
        (("--data", "--steps", "5"), "--steps is for runs, and --data trains nothing"),
        (("--run", "r"), "A proof makes no run folder"),
    ],
)
def test_bad_option_is_rejected_before_anything_trains(surestep, recipe, words, message):
    answer = surestep("prove", recipe(), *words)
    assert answer.code == 2
    assert message in answer.err


def test_run_records_the_proof_that_was_made_first(surestep, recipe, proved, tmp_path):
    path = recipe()
    proved(rows=(HOLDS,))
    answer = surestep("train", path, "--prove", "--run", str(tmp_path / "run"), "--max-steps", "2")
    assert answer.code == 0, answer.err
    proof = json.loads((tmp_path / "run" / "proof.json").read_text())
    assert proof["rows"][0]["name"] == "watching"
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert proof["recipe"] == config["recipe"]["sha256"]
    again = surestep("train", path, "--prove", "--run", str(tmp_path / "run"))
    assert again.code == 2
    assert "--prove is for a new run" in again.err


def test_nothing_is_trained_if_a_law_fails(surestep, recipe, proved, tmp_path):
    proved(rows=(FAILS,))
    answer = surestep("train", recipe(), "--prove", "--run", str(tmp_path / "run"))
    assert answer.code == 1
    assert "Nothing is trained, since laws fail: resuming." in answer.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--prove", "--dry-run"), "--prove cannot be combined with --dry-run"),
        (("--ignore", "order=x"), "--ignore is for --prove"),
    ],
)
def test_options_that_exclude_a_proof_are_rejected(surestep, recipe, words, message):
    answer = surestep("train", recipe(), *words)
    assert answer.code == 2
    assert message in answer.err
