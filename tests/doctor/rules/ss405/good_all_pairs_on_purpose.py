# expect: nothing
import torch

model = torch.nn.Linear(4, 1)
x, y = torch.randn(8, 4), torch.randn(8)
scores = model(x).squeeze(1)
order = y[:, None] > y
loss = torch.relu(1 - (scores.unsqueeze(1) - scores))[order].mean()
loss.backward()
print(model.weight.grad)
