# expect: SS309 line 7
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
x, y = torch.randn(64, 4), torch.randn(64, 1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(30):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    scheduler.step(loss.item())
