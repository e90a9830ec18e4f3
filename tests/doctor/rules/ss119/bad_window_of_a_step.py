# expect: SS119 line 8; watch: nothing
import torch

model, accumulate = torch.nn.Linear(4, 1), 4
optimizer = torch.optim.Adam(model.parameters())
for index in range(16):
    (model(torch.randn(8, 4)).pow(2).mean() / accumulate).backward()
    if (index + 1) % accumulate:
        optimizer.step()
        optimizer.zero_grad()
