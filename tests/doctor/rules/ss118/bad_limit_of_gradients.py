# expect: SS118 line 8, SS118 line 9
import torch

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(4, 2)).sum().backward()
for parameter in model.parameters():
    parameter.grad.div(4)
    parameter.grad.data.clamp(-1, 1)
optimizer.step()
