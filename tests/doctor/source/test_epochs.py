"""The epoch that a sampler gets: what may reach it, and in how many passes."""

import pytest

from tests.doctor.scripts import check_text

SCRIPT = """\
import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

def build(data, distributed):
    {sampler}
    return DataLoader(data, 8, sampler=sampler)

def run(model, data, held_out, distributed):
    loader = build(data, distributed)
    valid_loader = DataLoader(held_out, 8, sampler=DistributedSampler(held_out))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    {loop}
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
LINE = "sampler = DistributedSampler(data)"
EPOCHS = "for epoch in range(9):\n      for x, y in loader:"
SAMPLERS = {
    "alone": LINE,
    "class by a condition": (
        "kind = DistributedSampler if distributed else RandomSampler\n    sampler = kind(data)"
    ),
    "class by a table": (
        "kinds = {'one': RandomSampler, 'all': DistributedSampler}\n"
        "    sampler = kinds[distributed](data)"
    ),
    "object by a condition": "sampler = DistributedSampler(data) if distributed else None",
}
RESTARTED = """\
batches = iter(loader)
    for step in range(99):
        try:
            x, y = next(batches)
        except StopIteration:
            batches = iter(loader)
            x, y = next(batches)
"""
LOOPS = {
    "epochs": EPOCHS,
    "endless iterator": RESTARTED,
    "a comment": f"# loader.sampler.set_epoch(0)\n    {EPOCHS}",
    "of another loader": EPOCHS.replace(
        "      for", "      valid_loader.sampler.set_epoch(epoch)\n      for"
    ),
}
SETS = {
    "of the loader": "loader.sampler.set_epoch(epoch)",
    "of something unknown": "held_out.sampler.set_epoch(epoch)",
    "of any": "for each in (loader, valid_loader): each.sampler.set_epoch(epoch)",
    "of what has it": "getattr(loader.sampler, 'set_epoch')(epoch); print(loader.set_epoch)",
}


def find(sampler, loop):
    text = SCRIPT.replace("{sampler}", sampler).replace("{loop}", loop)
    return [found.rule for found in check_text(text, "SS602")]


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_sampler_that_no_epoch_reaches_is_reported(sampler, loop):
    assert find(sampler, loop) == ["SS602"]


@pytest.mark.parametrize("call", SETS.values(), ids=SETS)
def test_call_that_may_reach_the_sampler_is_enough(call):
    assert find(LINE, EPOCHS.replace("      for", f"      {call}\n      for")) == []


def test_one_pass_needs_no_epoch():
    assert find(LINE, "for x, y in loader:") == []
    assert (
        find(LINE, "batches = iter(loader)\n    for _ in range(9):\n        x, y = next(batches)")
        == []
    )
