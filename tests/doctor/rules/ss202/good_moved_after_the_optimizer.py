# expect: nothing
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model = model.to("cpu").double()
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4, dtype=torch.float64)).pow(2).mean().backward()
    optimizer.step()
