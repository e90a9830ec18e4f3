"""A model with several inputs and outputs, and a loss of named parts: laws 1 and 3."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

import surestep
from tests.laws.support.plain import distance, order_of, two_groups
from tests.laws.support.tasks import train

STEPS, BATCH, SAMPLES = 12, 16, 55


class Two(nn.Module):
    """Maps an image and a word to a class and a number."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 6)
        self.first = nn.Linear(10, 6)
        self.kind = nn.Linear(6, 3)
        self.size = nn.Linear(6, 1)

    def forward(self, picture, word):
        hidden = torch.tanh(self.first(picture) + self.table(word))
        return {"kind": self.kind(hidden), "size": self.size(hidden).squeeze(1)}


def two():
    torch.manual_seed(1)
    return Two()


def data():
    generator = torch.Generator().manual_seed(2)
    return {
        "picture": torch.randn(SAMPLES, 10, generator=generator),
        "word": torch.randint(0, 7, (SAMPLES,), generator=generator),
        "kind": torch.randint(0, 3, (SAMPLES,), generator=generator),
        "size": torch.randn(SAMPLES, generator=generator),
    }


def parts_of_loss(outputs, targets):
    return {
        "kind": functional.cross_entropy(outputs["kind"], targets["kind"]),
        "size": 0.5 * functional.mse_loss(outputs["size"], targets["size"]),
    }


def inputs(batch):
    return {name: batch[name] for name in ("picture", "word")}, batch


def run(folder, **options):
    task = surestep.Task(two(), parts_of_loss, data(), inputs=inputs)
    return train(task, folder, max_steps=STEPS, batch_size=BATCH, **options)


def plain_losses(model):
    """Train a plain loop; return the two losses of each step."""
    optimizer = torch.optim.AdamW(two_groups(model, 0.01), lr=1e-3, fused=True)
    every, losses, epoch = data(), [], 0
    while True:
        order = order_of(SAMPLES, 0, epoch)
        for start in range(0, SAMPLES, BATCH):
            rows = order[start : start + BATCH]
            batch = {name: value[rows] for name, value in every.items()}
            outputs = model(batch["picture"], batch["word"])
            parts = parts_of_loss(outputs, batch)
            optimizer.zero_grad()
            sum(parts.values()).backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append({name: float(value.detach()) for name, value in parts.items()})
            if len(losses) == STEPS:
                return losses
        epoch += 1


@pytest.mark.parametrize("micro_batch_size", [BATCH, 5, 1])
def test_law_3_every_micro_batch_size_gives_the_usual_loop(folder, micro_batch_size):
    plain = two()
    losses = plain_losses(plain)
    session = run(folder(), micro_batch_size=micro_batch_size)
    assert distance(plain, session.model) <= 1e-6
    events = [event for event in session.run.events() if event["event"] == "steps"]
    for name in ("kind", "size"):
        logged = [value for event in events for value in event["logged"][name]]
        assert logged == pytest.approx([step_losses[name] for step_losses in losses], rel=1e-5)
    total = [value for event in events for value in event["loss"]]
    assert total == pytest.approx([sum(step_losses.values()) for step_losses in losses], rel=1e-5)
