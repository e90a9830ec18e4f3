# expect: nothing; watch: SS612 line 13
import torch
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        for index in torch.randperm(64, generator=torch.Generator().manual_seed(3)):
            x = torch.linspace(0, 1, 4) * index
            yield x + 0.1 * torch.randn(4), x.sum()


for x, y in DataLoader(Stream(), batch_size=16, num_workers=2):
    print(x.shape, y.mean())
