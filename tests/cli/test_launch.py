import pytest

from surestep.cli.launch import without_nproc

TWO = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (
            ["train", "digits", "--nproc", "4", "--epochs", "2"],
            ["train", "digits", "--epochs", "2"],
        ),
        (["train", "--nproc=4", "digits"], ["train", "digits"]),
        (["train", "digits"], ["train", "digits"]),
    ],
)
def test_the_processes_are_started_with_the_rest_of_the_line(words, kept):
    assert without_nproc(words) == kept


@pytest.mark.parametrize(("count", "words"), [("0", "--nproc 0 is not allowed"), ("-1", "--nproc")])
def test_less_than_one_process_is_refused(surestep, recipe, count, words):
    answer = surestep("train", recipe(), f"--nproc={count}")
    assert answer.code == 2
    assert words in answer.err


def test_several_within_several_are_refused(surestep, recipe, monkeypatch):
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "a",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    answer = surestep("train", recipe(), "--nproc", "2")
    assert answer.code == 2
    assert "leave --nproc out" in answer.err


def test_two_processes_train_one_run_and_one_prints(surestep, recipe, tmp_path):
    answer = surestep("train", recipe(), "--nproc", "2", "--run", str(tmp_path / "run"))
    assert answer.code == 0
    assert answer.out.count("Best checkpoint:") == 1
