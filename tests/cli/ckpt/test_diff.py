import json


def test_the_same_is_0(surestep, run):
    answer = surestep("ckpt", "diff", "r@3", "r/checkpoints/step-00000003")
    assert (answer.code, answer.out) == (0, "16 tensors are bit for bit the same, 0 changed.\n")


def test_what_changed_is_1_and_named(surestep, run):
    answer = surestep("ckpt", "diff", "r@3", "r@9")
    assert answer.code == 1
    assert "place.step 3 9" in answer.out
    assert "place.epoch 1 3" in answer.out
    model, optimizer = answer.out.split("Changed in the optimizer")
    assert "0.weight 32 of 32" in model
    assert "model/0.weight/exp_avg 32 of 32" in optimizer
    assert "0 tensors are bit for bit the same, 16 changed." in answer.out


def test_as_json_by_the_largest_relative_change(surestep, run):
    answer = surestep("ckpt", "diff", "r@3", "r@9", "--json")
    told = json.loads(answer.out)
    assert (answer.code, told["same"], told["equal_tensors"]) == (1, False, 0)
    assert {"name": "place.step", "before": 3, "now": 9} in told["values"]
    relative = [each["relative"] for each in told["moved"]]
    assert relative == sorted(relative, reverse=True)


def test_only_the_most_changed_are_shown_unasked(surestep, run, monkeypatch):
    monkeypatch.setattr("surestep.cli.ckpt.diff.ROWS", 1)
    answer = surestep("ckpt", "diff", "r@3", "r@9")
    assert "and 3 more: --all shows them" in answer.err
    assert "more" not in surestep("ckpt", "diff", "r@3", "r@9", "--all").err


def test_a_damaged_one_is_not_compared(surestep, run, flip):
    flip(9)
    answer = surestep("ckpt", "diff", "r@3", "r@9")
    assert (answer.code, answer.out) == (2, "")
    assert "step-00000009 is damaged" in answer.err


def test_what_is_not_there_is_trouble_and_no_difference(surestep, run):
    for missing in ("r@4", "gone@3"):
        answer = surestep("ckpt", "diff", "r@3", missing)
        assert (answer.code, answer.out) == (2, "")
