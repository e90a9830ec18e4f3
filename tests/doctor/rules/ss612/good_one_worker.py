# expect: nothing
import torch
from torch.utils.data import DataLoader, IterableDataset


class Numbers(IterableDataset):
    def __iter__(self):
        yield from range(100)


loader = DataLoader(Numbers(), batch_size=10, num_workers=1)
for batch in loader:
    print(batch.mean(dtype=torch.float))
