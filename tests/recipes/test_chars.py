import math

import pytest
import torch

import surestep
from surestep.recipes import chars
from surestep.recipes.load import load

SMALL = {"width": 32, "layers": 1, "heads": 2, "length": 16}
TEXT = "def add(first, second):\n\treturn first + second  # naïve\n\n"


@pytest.fixture
def few_files(tmp_path, monkeypatch):
    files = []
    for number in range(21):
        files.append(tmp_path / f"module_{number}.py")
        files[-1].write_text(TEXT * 4, encoding="utf-8")
    monkeypatch.setattr(chars, "source_files", lambda: files)
    return files


def train(folder, **options):
    recipe = load("chars")
    options = {"max_steps": 20, "batch_size": 16, "logging.progress": "quiet", **options}
    config = recipe.config.replace_options({"validation.every": "10 steps", **options})
    task = recipe.build(SMALL, config)
    return surestep.Trainer(task, config, run=folder, callbacks=[])


def test_loss_falls_and_bits_are_nats_over_ln_2(tmp_path, few_files):
    trainer = train(tmp_path / "r", **{"optim.lr": 0.01})
    run = trainer.fit()
    first, last = (each["metrics"] for each in run.events() if each["event"] == "evaluation")
    assert last["val/loss"] < first["val/loss"] < math.log(len(chars.ALPHABET))
    for metrics in (first, last, trainer.evaluate("test")):
        nats, bits = (
            next(value for name, value in metrics.items() if name.endswith(each))
            for each in ("/loss", "/bits_per_char")
        )
        assert bits == pytest.approx(nats / math.log(2), rel=1e-5)


def test_splits_share_no_files(monkeypatch):
    monkeypatch.setattr(chars, "windows", lambda files, length: set(files))
    task = chars.task(**SMALL)
    every = chars.source_files()
    assert len(every) > 100
    assert task.train | task.val | task.test == set(every)
    assert len(task.train) + len(task.val) + len(task.test) == len(every)
    assert len(task.train) > 0.85 * len(every)


def test_target_is_the_next_character(few_files):
    inputs, targets = chars.windows(few_files[:2], 10)
    assert inputs.shape == targets.shape
    text = chars.decode(inputs.flatten().tolist())
    whole = "\n".join([TEXT * 4] * 2).replace("\t", "    ").replace("ï", "?")
    assert whole.startswith(text)
    assert len(whole) - len(text) <= 10
    assert chars.decode(targets.flatten().tolist()) == whole[1 : len(text) + 1]


def test_every_character_of_the_alphabet_round_trips():
    assert chars.decode(chars.encode(chars.ALPHABET).tolist()) == chars.ALPHABET
    assert chars.decode(chars.encode("é").tolist()) == "?"


def test_attention_is_causal():
    model = chars.GPT(**SMALL).eval()
    tokens = torch.randint(96, (1, 16), generator=torch.Generator().manual_seed(0))
    other = tokens.clone()
    other[0, 9:] = 0
    with torch.no_grad():
        before, after = model(tokens), model(other)
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_loss_equals_plain_torch_cross_entropy():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 96, generator=generator)
    targets = torch.randint(96, (2, 5), generator=generator)
    picked = logits.log_softmax(dim=-1).gather(-1, targets.unsqueeze(-1))
    torch.testing.assert_close(chars.nats(logits, targets), -picked.mean())
    assert float(chars.bits_per_char(logits, targets)) == pytest.approx(
        -float(picked.mean()) / math.log(2)
    )


@pytest.mark.parametrize("length", [16, 128])
def test_model_continues_a_prompt_of_any_length(length):
    torch.manual_seed(0)
    model = chars.GPT(**{**SMALL, "length": length}).eval()
    text = chars.sample(model, "def ", 140)
    assert text.startswith("def ")
    assert len(text) == 144
    assert text == chars.sample(model, "def ", 140)


def test_sample_is_printed_at_the_end_of_the_run(tmp_path, few_files, capsys):
    recipe = load("chars")
    config = recipe.config.replace_options({"max_steps": 1, "schedule.warmup": "0%"})
    config = config.replace_options({"logging.progress": "quiet", "batch_size": 4})
    task = recipe.build({**SMALL, "length": 128}, config)
    surestep.Trainer(task, config, run=tmp_path / "r", callbacks=recipe.callbacks).fit()
    assert capsys.readouterr().out.startswith("def ")
