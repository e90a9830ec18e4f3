# expect: nothing
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
model.eval()
with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
    model(torch.randn(8, 4))
