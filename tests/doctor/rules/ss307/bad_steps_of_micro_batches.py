# expect: nothing; watch: SS307 line 22
from functools import partial

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset


def decay(step: int, *, num_warmup_steps: int, num_training_steps: int) -> float:
    if step < num_warmup_steps:
        return step / num_warmup_steps
    rest = num_training_steps - step
    return max(0.0, rest / (num_training_steps - num_warmup_steps))


data = TensorDataset(torch.randn(128, 4), torch.randn(128, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
total = 2 * len(loader)  # but a step is made for every four of them
rate = partial(decay, num_warmup_steps=2, num_training_steps=total)
schedule = LambdaLR(optimizer, rate)
for epoch in range(2):
    for index, (x, y) in enumerate(loader, start=1):
        (torch.nn.functional.mse_loss(model(x), y) / 4).backward()
        if index % 4 == 0:
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
