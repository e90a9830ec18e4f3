import random
import re

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from tests import tiny
from tests.engine.data.streams import Sized

X, Y = tiny.data()


class Rows(Dataset):
    def __init__(self, **attributes):
        vars(self).update(attributes)

    def __len__(self):
        return len(Y)

    def __getitem__(self, index):
        return X[index], Y[index]


class Many(Rows):
    def __getitems__(self, rows):
        return [self[row] for row in rows]


def collate(samples):
    return torch.utils.data.default_collate(samples)


@pytest.mark.parametrize(
    ("parts", "value", "reason"),
    [
        ({"train": (X, Y)}, "none", "draws no random numbers"),
        ({"train": Sized()}, "by position in the stream", "its position in the stream"),
        ({"train": Rows()}, "by position", "the same for any number of workers and any split"),
        ({"train": DataLoader(Rows(), 8)}, "by position", "any split"),
        ({"train": Many()}, "by first position", "__getitems__ draws by the first position"),
        (
            {"train": DataLoader(Many(), 8, collate_fn=collate)},
            "by first position",
            "__getitems__ and collate_fn draw by the first position of the micro-batch: the same "
            "for any number of workers, not for another micro_batch_size",
        ),
        ({"train": Rows(), "collate_fn": collate}, "by first position", "collate_fn draws"),
        (
            {"train": Rows(rng=random.Random())},
            "by position",
            r"any split; own generators too: dataset\.rng \(Random\)",
        ),
        (
            {"train": Rows(rng=random.SystemRandom())},
            "not exact",
            r"dataset\.rng \(SystemRandom\) takes no seed.*draw from random\.Random",
        ),
    ],
)
def test_plan_reports_how_data_loading_is_seeded(parts, value, reason):
    plan = tiny.plan(parts).plan
    assert plan.data_randomness == value
    assert re.search(reason, plan.reason("data.randomness"))
