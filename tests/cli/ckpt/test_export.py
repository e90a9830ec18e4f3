import json

import torch

from tests import tiny


def test_exported_file_is_named_on_stdout(surestep, run, folder):
    answer = surestep("ckpt", "export", "r@9", "w.pt")
    assert (answer.code, answer.out) == (0, "w.pt\n")
    assert answer.err.startswith("The weights of step 9: 4 tensors, ")
    model, other = tiny.model(7), tiny.model(8)
    model.load_state_dict(torch.load("w.pt", weights_only=True))
    run.load_model(other, "last")
    assert torch.equal(tiny.weights(model), tiny.weights(other))


def test_export_can_be_reported_as_json(surestep, run):
    told = json.loads(surestep("ckpt", "export", "r", "w.safetensors", "--json").out)
    assert (told["path"], told["step"], told["average"]) == ("w.safetensors", 6, False)
    assert told["checkpoint"] == "r/checkpoints/step-00000006"


def test_export_of_the_best_uses_the_average_if_it_was_evaluated(surestep, folder):
    x, y = tiny.data()
    tiny.fit(folder / "a", {"val": (x, y)}, average={"kind": "ema", "decay": 0.5})
    said = surestep("ckpt", "export", "a", "best.pt").err
    assert said.startswith("The averaged weights of step ")
    assert surestep("ckpt", "export", "a@last", "last.pt").err.startswith("The weights of step 6")
    told = surestep("ckpt", "export", "a@6", "average.pt", "--average").err
    assert told.startswith("The averaged weights of step 6")


def test_export_names_the_frozen_tensors_missing_from_the_checkpoint(surestep, folder):
    model = tiny.model()
    model[0].requires_grad_(False)
    tiny.fit(folder / "r", {"model": model}, checkpoint={"weights": "trained"})
    answer = surestep("ckpt", "export", "r@last", "w.pt")
    assert "2 tensors of the frozen base are missing" in answer.err
    assert "0.bias, 0.weight" in answer.err
    model.load_state_dict(torch.load("w.pt", weights_only=True), strict=False)


def test_usage_error_exits_with_2_and_corrupt_checkpoint_with_1(surestep, run, flip, folder):
    assert surestep("ckpt", "export", "r", "w.bin").code == 2
    assert surestep("ckpt", "export", "r@bset", "w.pt").code == 2
    (folder / "w.pt").write_text("mine")
    assert surestep("ckpt", "export", "r", "w.pt").code == 2
    flip(9)
    answer = surestep("ckpt", "export", "r@9", "w.pt", "--overwrite")
    assert answer.code == 1
    assert "model.safetensors" in answer.err
    assert (folder / "w.pt").read_text() == "mine"
