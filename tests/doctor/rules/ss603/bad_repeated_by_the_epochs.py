# expect: SS603 line 20; watch: nothing
import random

import torch
from torch.utils.data import DataLoader, Dataset


class Cropped(Dataset):
    def __init__(self) -> None:
        self.data = torch.randn(16, 8)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        start = random.randrange(4)
        return self.data[index, start : start + 4]


loader = DataLoader(
    Cropped(), 8, shuffle=True, num_workers=1, worker_init_fn=lambda i: random.seed(100 + i)
)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    for x in loader:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
