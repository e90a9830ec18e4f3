# expect: nothing
import torch

body, heads = torch.nn.Linear(4, 4), [torch.nn.Linear(4, 1) for _ in range(3)]
parameters = [p for module in (body, *heads) for p in module.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.1)
for _ in range(10):
    features = body(torch.randn(8, 4))
    loss = features.pow(2).mean()
    for head in heads:
        loss += head(features).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
