# expect: SS103 line 11
import torch
from torch.nn.utils import clip_grad_norm_

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())


def update(loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    clip_grad_norm_(model.parameters(), 0.5)
    loss.backward()
    optimizer.step()


for _ in range(5):
    update(model(torch.randn(8, 4)).pow(2).mean())
