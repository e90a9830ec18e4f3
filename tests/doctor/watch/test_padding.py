"""Counted padding is found if a model computes its loss itself, as those of transformers do."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from surestep.doctor.rule import load_rules
from surestep.doctor.watch.watch import WatchSession

PAD = 0


class LanguageModel(nn.Module):
    """It is called with keywords, and shifts its labels."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(30, 8), nn.Linear(8, 30)

    def forward(self, *, input_ids, labels):
        logits = self.head(self.embedding(input_ids))
        shifted = F.pad(labels, (0, 1), value=-100)[:, 1:]
        return F.cross_entropy(logits.view(-1, 30), shifted.reshape(-1))


def train(lengths, ignored):
    model = LanguageModel()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(8):
        ids = torch.randint(1, 30, (len(lengths), 12))
        for row, length in zip(ids, lengths, strict=True):
            row[length:] = PAD
        labels = ids.clone()
        labels[labels == ignored] = -100
        optimizer.zero_grad()
        model(input_ids=ids, labels=labels).backward()
        optimizer.step()


def find(lengths, ignored=-1):
    watch = WatchSession([rule for rule in load_rules() if rule.code == "SS508"])
    watch.run(lambda: train(lengths, ignored))
    report = watch.report()
    assert (report.failures, report.stopped_at) == ({}, None)
    return report.findings


def test_padding_in_the_labels_of_a_model_is_found():
    (found,) = find([12, 9, 7, 4])
    assert found.evidence["padding"] == PAD
    assert found.evidence["padded"] / found.evidence["targets"] == (3 + 5 + 8) / (4 * 12)


@pytest.mark.parametrize(
    ("lengths", "ignored"), [([12, 9, 7, 4], PAD), ([9, 9, 7, 4], PAD), ([12, 12, 12, 12], -1)]
)
def test_padding_that_is_ignored_is_not_reported(lengths, ignored):
    assert find(lengths, ignored) == []


def test_labels_of_a_video_that_stay_the_same_after_an_event_are_no_padding():
    """The frames after it differ, so that the inputs are not padded there."""
    model = nn.Sequential(nn.Flatten(2), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters())

    def train_on_frames():
        for _ in range(8):
            frames = torch.randn(8, 12, 4, 4)
            labels = (torch.arange(12) >= torch.arange(2, 10)[:, None]).long()
            optimizer.zero_grad()
            F.cross_entropy(model(frames).flatten(0, 1), labels.flatten()).backward()
            optimizer.step()

    watch = WatchSession([rule for rule in load_rules() if rule.code == "SS508"])
    watch.run(train_on_frames)
    assert watch.report().findings == []
