# expect: nothing
import torch

body, head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
features = body(torch.randn(8, 4))
for _ in range(5):
    optimizer.zero_grad()
    head(features).pow(2).mean().backward(retain_graph=True)
    optimizer.step()
