# expect: SS106 line 8
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
accumulation_steps = 4
for index in range(12):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).pow(2).mean() / accumulation_steps
    loss.backward()
    if (index + 1) % accumulation_steps == 0:
        optimizer.step()
