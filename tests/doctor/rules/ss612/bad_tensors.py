# expect: SS612 line 16; watch: SS612 line 20
import torch
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __init__(self) -> None:
        self.data = torch.randn(64, 4)

    def __iter__(self):
        for row in self.data:
            yield row / 2


def make_loader(dataset):
    return DataLoader(dataset, 8, num_workers=2, pin_memory=False)


loader = make_loader(Stream())
for batch in loader:
    print(batch.mean(dtype=torch.float))
