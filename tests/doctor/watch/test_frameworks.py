"""Scripts of other libraries train the same when they are watched, and a mistake is found."""

import pytest
import torch

from surestep.doctor.rule import load_rules
from surestep.doctor.watch.watch import WatchSession
from tests.needs import needs

pytestmark = [
    pytest.mark.slow("needs accelerate, transformers, lightning and pytorch-ignite"),
    pytest.mark.filterwarnings("ignore"),  # of the libraries
]
DATA = """
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(256, 8)
y = x[:, :3].argmax(1)
train = DataLoader(TensorDataset(x[:192], y[:192]), batch_size=16, shuffle=True)
val = DataLoader(TensorDataset(x[192:], y[192:]), batch_size=16)
net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
"""
ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 18)
net, optimizer, train, schedule = accelerator.prepare(net, optimizer, train, schedule)
for epoch in range(3):
    for inputs, targets in train:
        with accelerator.accumulate(net):
            accelerator.backward(cross_entropy(net(inputs), targets))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
"""
FABRIC = """
from lightning.fabric import Fabric
fabric = Fabric(accelerator="cpu", devices=1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net, optimizer = fabric.setup(net, optimizer)
train = fabric.setup_dataloaders(train)
for epoch in range(3):
    for inputs, targets in train:
        optimizer.zero_grad()
        fabric.backward(cross_entropy(net(inputs), targets))
        fabric.clip_gradients(net, optimizer, max_norm=1.0)
        optimizer.step()
"""
IGNITE = """
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
trainer = create_supervised_trainer(net, optimizer, torch.nn.CrossEntropyLoss())
evaluator = create_supervised_evaluator(net, metrics={"accuracy": Accuracy()})
trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(val))
trainer.run(train, max_epochs=3)
"""
LIGHTNING = """
import lightning

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net
    def training_step(self, batch, index):
        inputs, targets = batch
        return cross_entropy(self.net(inputs), targets)
    def validation_step(self, batch, index):
        inputs, targets = batch
        self.log("loss", cross_entropy(self.net(inputs), targets))
    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)]

trainer = lightning.Trainer(
    max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0,
)
trainer.fit(Model(), train, val)
"""
TRANSFORMERS = """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
config = GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=60, n_positions=16)
net = GPT2LMHeadModel(config)

class Sequences(torch.utils.data.Dataset):
    def __init__(self, first):
        self.first = first
    def __len__(self):
        return 30
    def __getitem__(self, index):
        tokens = (torch.arange(16) * (index % 7 + 1) + index + self.first) % 60
        return {"input_ids": tokens, "labels": tokens}

given = TrainingArguments(
    folder, max_steps=24, per_device_train_batch_size=8, gradient_accumulation_steps=2,
    report_to=[], save_strategy="no", eval_strategy="steps", eval_steps=8, disable_tqdm=True,
    use_cpu=True,
)
Trainer(net, given, train_dataset=Sequences(0), eval_dataset=Sequences(30)).train()
"""
SOFTMAX = ("32, 3))", "32, 3), torch.nn.Softmax(1))")  # of the output of the model
# The script, what to replace to make a mistake, and the rule that finds it.
SCRIPTS = {
    "accelerate": (ACCELERATE, ("            optimizer.zero_grad()\n", ""), "SS101"),
    "fabric": (FABRIC, ("        optimizer.zero_grad()\n", ""), "SS101"),
    "ignite": (IGNITE, SOFTMAX, "SS501"),
    "lightning": (LIGHTNING, SOFTMAX, "SS501"),
    "transformers": (
        TRANSFORMERS,
        ("vocab_size=60", "vocab_size=60, initializer_range=9.0"),
        "SS506",
    ),
}


def run(text, folder):
    script = {"__name__": "__main__", "folder": str(folder)}
    exec(compile(text, "script.py", "exec"), script)
    return [parameter.detach().clone() for parameter in script["net"].parameters()]


def watch(text, folder):
    """Return the parameters after the script, and the codes of what was found."""
    observed, trained = WatchSession(load_rules()), []
    observed.run(lambda: trained.extend(run(text, folder)))
    report = observed.report()
    assert (report.failures, report.stopped_at) == ({}, None)
    return trained, {finding.rule for finding in report.findings}


@pytest.mark.parametrize("name", SCRIPTS)
def test_correct_script_trains_the_same_without_a_finding(tmp_path, name):
    needs("lightning" if name == "fabric" else name)
    text = DATA + SCRIPTS[name][0]
    expected = run(text, tmp_path)
    trained, found = watch(text, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(expected, trained, strict=True))
    assert found == set()


@pytest.mark.parametrize("name", SCRIPTS)
def test_mistake_in_the_script_is_found(tmp_path, name):
    needs("lightning" if name == "fabric" else name)
    text, (right, wrong), code = SCRIPTS[name]
    text = DATA + text
    assert text.count(right) == 1
    _, found = watch(text.replace(right, wrong), tmp_path)
    assert code in found
    assert found <= {code, "SS117"}
