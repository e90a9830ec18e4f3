# expect: SS119 line 12
import torch

model, log_interval, batches = torch.nn.Linear(4, 1), 4, 16
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for index in range(batches):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    count = index + 1
    if model.training and (index % log_interval or count == batches):
        mean = loss.item()
        print(count, mean)
