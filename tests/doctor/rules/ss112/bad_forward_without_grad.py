# expect: SS112 line 12
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    with torch.no_grad():
        output = model(torch.randn(8, 4))
    loss = output.pow(2).mean()
    loss.requires_grad_(True)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
