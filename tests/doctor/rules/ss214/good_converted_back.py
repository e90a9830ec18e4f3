# expect: nothing
import torch

model = torch.nn.Linear(4, 1).bfloat16()
model.float()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
