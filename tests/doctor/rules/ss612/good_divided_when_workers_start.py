# expect: nothing
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Numbers(IterableDataset):
    def __init__(self) -> None:
        self.numbers = range(100)

    def __iter__(self):
        yield from self.numbers


def take_part(index):
    info = get_worker_info()
    info.dataset.numbers = info.dataset.numbers[index :: info.num_workers]


loader = DataLoader(Numbers(), batch_size=10, num_workers=2, worker_init_fn=take_part)
for batch in loader:
    print(batch.mean(dtype=torch.float))
