# expect: SS102 line 9; watch: SS106 line 9
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    parts = torch.randn(16, 4).split(4)
    for part in parts:
        optimizer.zero_grad()
        loss = model(part).pow(2).mean() / len(parts)
        loss.backward()
    optimizer.step()
