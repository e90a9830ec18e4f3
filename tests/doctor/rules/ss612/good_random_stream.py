# expect: nothing
import torch
from torch.utils.data import DataLoader, IterableDataset


class Noise(IterableDataset):
    def __iter__(self):
        for _ in range(100):
            yield torch.randn(4)


loader = DataLoader(Noise(), batch_size=10, num_workers=2)
for batch in loader:
    print(batch.mean(dtype=torch.float))
