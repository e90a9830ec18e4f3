# expect: SS108 line 16; watch: SS108 line 10
import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(40, 4), torch.randn(40, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model.zero_grad()
    for index, (x, y) in enumerate(loader):
        (torch.nn.functional.mse_loss(model(x), y) / 3).backward()
        if (index + 1) % 3:
            continue
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
