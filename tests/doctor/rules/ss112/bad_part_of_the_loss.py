# expect: nothing; watch: SS112 line 11
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    output = model(torch.randn(8, 4))
    loss = torch.nn.functional.mse_loss(output.detach().requires_grad_(), torch.ones(8, 1))
    loss = loss + output.abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
