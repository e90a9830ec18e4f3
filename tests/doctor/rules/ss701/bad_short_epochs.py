# expect: SS701 line 14; watch: SS701 line 12
import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(4):
    total = torch.zeros(())
    for _ in range(5):
        x = torch.randn(8, 4)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        total = total + loss
    print(epoch, float(total))
