# expect: SS102 line 10
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for index in range(12):
    loss = model(torch.randn(8, 4)).pow(2).mean() / 4
    loss.backward()
    if (index + 1) % 4 == 0:
        model.zero_grad()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
