# expect: SS612 line 16; watch: nothing
import torch
from torch.utils import data


class Lines(data.IterableDataset):
    def __init__(self, path) -> None:
        self.path = path

    def __iter__(self):
        with open(self.path) as file:
            for line in file:
                yield torch.tensor([float(x) for x in line.split()])


loader = data.DataLoader(Lines("samples.txt"), batch_size=8, num_workers=8)
