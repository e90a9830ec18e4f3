# expect: nothing
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
for _ in range(5):
    optimizer.zero_grad()
    output = model(torch.randn(8, 4))
    output.pow(2).mean().backward()
    optimizer.step()
    accuracy = (output > 0).float().mean().item()
    scheduler.step(1 - accuracy)
