import json

import torch
from torch import nn

from surestep import Callback, Trainer
from surestep.record.checkpoint.manifest import read_manifest
from tests import tiny


def test_identical_checkpoints_exit_with_0(surestep, run):
    answer = surestep("ckpt", "diff", "r@3", "r/checkpoints/step-00000003")
    assert (answer.code, answer.out) == (0, "16 tensors are bitwise identical, 0 changed.\n")


def test_changed_values_are_named_and_exit_with_1(surestep, run):
    answer = surestep("ckpt", "diff", "r@3", "r@9")
    assert answer.code == 1
    assert "progress.step 3 9" in answer.out
    assert "progress.epoch 1 3" in answer.out
    model, optimizer = answer.out.split("Changed in the optimizer")
    assert "0.weight 32 of 32" in model
    assert "model/0.weight/exp_avg 32 of 32" in optimizer
    assert "0 tensors are bitwise identical, 16 changed." in answer.out


class Counting(nn.Linear):
    """Counts its calls in a non-persistent buffer."""

    def __init__(self):
        super().__init__(tiny.FEATURES, tiny.CLASSES)
        self.register_buffer("calls", torch.zeros(1), persistent=False)

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Own(Callback):
    """Declares a tensor and a number."""

    steps = 0

    def on_step(self, state, result):
        self.steps += 1

    def state_dict(self):
        return {"steps": self.steps, "as_tensor": torch.full((2,), float(self.steps))}

    def load_state_dict(self, state):
        pass


def test_every_kind_of_tensor_is_shown(surestep, folder):
    said = {"every": "3 steps", "keep_last": 9}
    config = tiny.config(average={"kind": "ema"}, checkpoint=said)
    Trainer(tiny.task(model=Counting()), config, run=folder / "r", callbacks=[Own()]).fit()
    kinds = read_manifest(folder / "r/checkpoints/step-00000006").tensors
    assert kinds.keys() == {"model", "average", "optimizer", "callback_states", "buffers"}
    out = surestep("ckpt", "diff", "r@3", "r@6").out
    titles = [line for line in out.splitlines() if line.startswith("Changed in the ")]
    assert len(titles) == len(kinds)
    for kind, stored in kinds.items():
        assert any(kind in title for title in titles)
        assert all(name in out for name in stored)
    assert "callback_states.Own.steps 3 6" in out


def test_json_output_is_sorted_by_the_largest_relative_change(surestep, run):
    answer = surestep("ckpt", "diff", "r@3", "r@9", "--json")
    told = json.loads(answer.out)
    assert (answer.code, told["same"], told["equal_tensors"]) == (1, False, 0)
    assert {"name": "progress.step", "before": 3, "now": 9} in told["values"]
    relative = [each["relative"] for each in told["changed"]]
    assert relative == sorted(relative, reverse=True)


def test_only_the_most_changed_tensors_are_shown_without_all(surestep, run, monkeypatch):
    monkeypatch.setattr("surestep.cli.ckpt.ROWS", 1)
    answer = surestep("ckpt", "diff", "r@3", "r@9")
    assert "and 3 more: --all shows them" in answer.err
    assert "more" not in surestep("ckpt", "diff", "r@3", "r@9", "--all").err


def test_corrupt_checkpoint_is_not_compared(surestep, run, flip):
    flip(9)
    answer = surestep("ckpt", "diff", "r@3", "r@9")
    assert (answer.code, answer.out) == (2, "")
    assert "step-00000009 is damaged" in answer.err


def test_missing_checkpoint_exits_with_2_and_not_as_a_difference(surestep, run):
    for missing in ("r@4", "gone@3"):
        answer = surestep("ckpt", "diff", "r@3", missing)
        assert (answer.code, answer.out) == (2, "")
