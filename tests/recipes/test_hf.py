import math

import pytest
import torch

import surestep
from surestep.recipes import hf
from surestep.recipes.load import load

SMALL = {"width": 16, "layers": 1, "heads": 2, "length": 64}
TEXT = '''
def add(first, second):
    return first + second

class Sum:
    def none(self):
        return "naïve"  # {}

def long():
    """{}"""
'''


@pytest.fixture(autouse=True)
def few_files(tmp_path, monkeypatch):
    files = []
    for number in range(21):
        files.append(tmp_path / f"module_{number}.py")
        files[-1].write_text(TEXT.format(number, "x" * 70), encoding="utf-8")
    monkeypatch.setattr(hf, "source_files", lambda: files)
    return files


def test_loss_falls_and_bits_per_char_follow_from_it(tmp_path):
    recipe = load("hf")
    options = {"max_steps": 20, "batch_size": 8, "optim.lr": 0.01, "validation.every": "10 steps"}
    config = recipe.config.replace_options({**options, "logging.progress": "quiet"})
    trainer = surestep.Trainer(recipe.build(SMALL, config), config, run=tmp_path / "r")
    run = trainer.fit()
    first, last = (each["metrics"] for each in run.events() if each["event"] == "evaluation")
    assert last["val/loss"] < first["val/loss"] < math.log(hf.WORDS)
    for metrics in (first, last):
        assert metrics["val/bits_per_char"] == pytest.approx(
            metrics["val/loss"] / math.log(2), rel=1e-4
        )
    trainer.session.close()


def test_full_functions_are_found_and_long_ones_dropped(few_files):
    found = ["".join(map(chr, each[:-1].tolist())) for each in hf.functions(few_files[:1], 64)]
    assert found == [
        "def add(first, second):\n    return first + second\n",
        'def none(self):\n    return "na?ve"  # 0\n',
    ]
    assert all(int(each[-1]) == hf.END for each in hf.functions(few_files, 64))


def test_padding_is_masked_in_labels_and_attention():
    short, long = torch.tensor([100, 101, hf.END]), torch.tensor([97, 98, 99, 100, hf.END])
    batch = hf.batch([short, long])
    assert batch["labels"].tolist() == [[100, 101, hf.END, -100, -100], long.tolist()]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1] * 5]
    assert batch["input_ids"].min() >= 0
    model = hf.llama(**SMALL).eval()
    with torch.no_grad():
        together, alone = model(**batch), model(**hf.batch([short]))
    torch.testing.assert_close(together.logits[:1, :3], alone.logits)


def test_splits_share_no_files(few_files, monkeypatch):
    few_files.sort()
    monkeypatch.setattr(hf, "functions", lambda files, length: [str(each) for each in files])
    monkeypatch.setattr(surestep.samplers, "by_length", lambda lengths: None)
    task = hf.task(**SMALL)
    assert sorted([*task.train, *task.val, *task.test]) == [str(each) for each in few_files]
    assert (len(task.val), len(task.test)) == (2, 1)
