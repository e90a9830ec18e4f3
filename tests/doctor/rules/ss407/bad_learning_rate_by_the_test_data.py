# expect: SS407 line 17
import torch
from torch.utils.data import DataLoader, TensorDataset

train_loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8, shuffle=True)
test_loader = DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=8)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
for _ in range(3):
    for (x,) in train_loader:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    with torch.inference_mode():
        test_loss = sum(model(x).pow(2).sum().item() for (x,) in test_loader)
    scheduler.step(test_loss)
