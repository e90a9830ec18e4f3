"""Errors for ranks with different setups."""

import importlib
import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from torch import nn
from torch.utils.data import Dataset, IterableDataset

import surestep
from surestep.base.errors import ParallelError
from surestep.engine.distributed.launcher_env import LaunchInfo
from surestep.trainer.planning import TaskOrigin, plan_task
from surestep.trainer.rank_consistency import _known, check_same_setup, describe_differences
from tests import tiny


def planned(shift=0.0, parts=None, **said):
    x, y = tiny.data()
    return plan_task(tiny.task(train=(x + shift, y), **(parts or {})), tiny.config(**said))


def known(shift=0.0, parts=None, **said):
    return _known(TaskOrigin(), planned(shift, parts, **said))


def two(other):
    """Two ranks, of which the second has this identity."""
    return SimpleNamespace(
        size=2,
        all_gather_text=lambda text: [
            text,
            json.dumps(other) if text.startswith("{") else "other ",
        ],
    )


class Few(Dataset):
    """Loads samples one by one."""

    def __init__(self, data):
        self.data, self.loads = data, 0

    def __len__(self):
        return len(self.data[0])

    def __getitem__(self, index):
        self.loads += 1
        return self.data[0][index], self.data[1][index]


class Own(nn.Module):
    """Has no parameters."""

    def extra_repr(self):
        raise NotImplementedError


class Endless(IterableDataset):
    """A stream without a length."""

    def __iter__(self):
        return iter(zip(*moved(), strict=True))


class Counted(Endless):
    """A stream with a length."""

    def __len__(self):
        return 12


def test_different_training_data_is_named_with_a_hint_about_seeds():
    text = describe_differences([known(), known(1.0), known(1.0)])
    assert "\n  data.some samples: " in text
    assert " on rank 1-2\n" in text
    assert "call torch.manual_seed(0) before it is made" in text


def test_different_start_of_a_stream_is_named_with_a_hint_about_splitting():
    text = describe_differences([{"data.first samples": "a"}, {"data.first samples": "b"}])
    assert "data.first samples: a on rank 0; b on rank 1" in text
    assert "split_by_node" in text


def test_different_option_is_named_with_its_values_and_no_data_hint():
    text = describe_differences(
        [known(optim=surestep.Optim(lr=0.1)), known(optim=surestep.Optim(lr=0.2))]
    )
    assert "  optim.lr: 0.1 on rank 0; 0.2 on rank 1\n" in text
    assert "manual_seed" not in text


def moved(samples=12, shift=0.0):
    x, y = tiny.data(samples)
    return x + shift, y


@pytest.mark.parametrize("kind", [tuple, Few], ids=["tensors", "a dataset"])
@pytest.mark.parametrize(
    ("part", "given"),
    [("val", lambda data: data), ("far", lambda data: {"far": data}), ("test", lambda data: data)],
)
def test_different_evaluation_data_is_named(part, given, kind):
    name = "test" if part == "test" else "val"
    same, fewer, other = (
        known(parts={name: given(kind(data))}) for data in (moved(), moved(9), moved(shift=1.0))
    )
    assert same == known(parts={name: given(kind(moved()))})
    text = describe_differences([same, fewer])
    assert f"  data.{part} samples: 12 on rank 0; 9 on rank 1\n" in text
    text = describe_differences([same, other])
    assert f"\n  data.{part} some samples: " in text
    assert f"data.{part} samples" not in text


def test_evaluation_data_of_only_one_rank_is_named():
    text = describe_differences([known(), known(parts={"val": moved()})])
    assert "  data.val samples: not set on rank 0; 12 on rank 1\n" in text


def test_stream_is_identified_by_its_length_and_first_samples():
    endless, counted = known(parts={"test": Endless()}), known(parts={"test": Counted()})
    assert (endless["data.test samples"], counted["data.test samples"]) == ("null", "12")
    assert endless["data.test first samples"] == counted["data.test first samples"]


def test_single_process_does_not_read_the_evaluation_data_to_compare(tmp_path):
    dataset = Few(moved())
    tiny.prepare(tmp_path, {"test": dataset}, doctor={"check_data": "off"}).close()
    assert dataset.loads == 0


class Others:
    """A world in which the other rank sends the given text."""

    size, rank = 2, 0

    def __init__(self, gpu):
        self.gpu = gpu

    def all_gather_text(self, text):
        return [text, f"{text.split()[0]} {self.gpu}"]


def check_beside(monkeypatch, gpu):
    """Compare a rank that sees only the GPU "a" with a rank on the given GPU."""
    launched = LaunchInfo(size=2, local_size=2, launcher="srun")
    system = replace(tiny.GPU, launched=launched, cuda_ids=("a",), has_own_gpu=True)
    planned = plan_task(tiny.task(), tiny.config(), system=system)
    check_same_setup(Others(gpu), TaskOrigin(), planned)


def test_two_ranks_on_one_gpu_are_rejected_before_nccl_starts(monkeypatch):
    with pytest.raises(ParallelError, match=r"Ranks 0-1 would .* one GPU \(a\).*--gpus-per-task=1"):
        check_beside(monkeypatch, "a")


def test_ranks_with_one_visible_gpu_each_can_train(monkeypatch):
    check_beside(monkeypatch, "b")


def test_different_file_of_a_module_is_reported():
    one, other = (known() | {"code.mymodel": text} for text in "ab")
    text = describe_differences([one, other, other])
    assert "\n  code.mymodel: a on rank 0; b on rank 1-2\n" in text


def test_ranks_can_have_imported_different_modules():
    mine = {"code.tracker": "a"}
    check_same_setup(two(known() | mine), TaskOrigin(), planned())
    with pytest.raises(ParallelError, match=r"optim\.lr: 0\.\d+ on rank 0; 0\.1 on rank 1"):
        check_same_setup(two(known(optim=surestep.Optim(lr=0.1)) | mine), TaskOrigin(), planned())


@pytest.mark.parametrize(
    ("other", "line"),
    [
        (nn.ReLU(), 'modules.1.type: "torch.nn.modules.activation.Tanh" on rank 0; '),
        (Own(), f'modules.1.type: "torch.nn.modules.activation.Tanh" on rank 0; "{__name__}.Own"'),
    ],
)
def test_module_of_a_different_type_is_named(other, line):
    model = tiny.model()
    model[1] = other
    assert f"  {line}" in describe_differences([known(), known(parts={"model": model})])


def test_different_settings_of_a_module_are_named():
    text = describe_differences([known(), known(parts={"model": tiny.model(dropout=0.5)})])
    assert "  modules.2.p: 0.0 on rank 0; 0.5 on rank 1" in text


def test_user_code_of_ranks_is_compared(tmp_path, monkeypatch):
    (tmp_path / "code_of_a_rank.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("code_of_a_rank")
    assert "code.code_of_a_rank" in known()
    del sys.modules["code_of_a_rank"]  # its file goes
