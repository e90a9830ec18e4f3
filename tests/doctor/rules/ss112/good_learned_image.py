# expect: nothing
import torch

model = torch.nn.Linear(4, 1).requires_grad_(False)
image = torch.zeros(1, 4, requires_grad=True)
optimizer = torch.optim.Adam([image], lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(image).pow(2).mean().backward()
    optimizer.step()
