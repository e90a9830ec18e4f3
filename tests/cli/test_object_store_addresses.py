"""Commands that need a folder or a file reject the address of an object store."""

import pytest

COMMANDS = {
    "evaluate": ["s3://box/run"],
    "evaluate a step": ["s3://box/run@200"],
    "predict": ["s3://box/run@best"],
    "ckpt export": ["s3://box/run@best", "a.pt"],
    "ckpt diff": ["s3://box/run@1", "s3://box/run@2"],
    "replay": ["s3://box/run/incidents/step-00000001"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_run_at_an_object_store_address_is_rejected(surestep, command):
    words = [word for word in command.split() if word not in ("a", "step")]
    answer = surestep(*words, *COMMANDS[command])
    # As with diff and cmp, 1 means "different".
    trouble = 2 if command == "ckpt diff" else 1
    assert (answer.code, answer.out) == (trouble, "")
    assert f"'{COMMANDS[command][0]}' is an address, but surestep needs a folder" in answer.err


@pytest.mark.parametrize("words", [["ckpt", "export", "r@best"], ["predict", "r", "--out"]])
def test_output_to_an_object_store_address_is_rejected(surestep, recipe, words):
    surestep("train", recipe(), "--run", "r")
    answer = surestep(*words, "s3://box/a.npz")
    assert answer.code == 1
    assert "RunError: 's3://box/a.npz' is an address" in answer.err
