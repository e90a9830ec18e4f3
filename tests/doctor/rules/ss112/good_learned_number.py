# expect: nothing
import torch

temperature = torch.tensor(2.0, requires_grad=True)
optimizer = torch.optim.Adam([temperature], lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    loss = 3 * temperature
    loss.backward()
    optimizer.step()
