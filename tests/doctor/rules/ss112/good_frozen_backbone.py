# expect: nothing
import torch

backbone, head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
for _ in range(5):
    features = backbone(torch.randn(2, 4)).detach()
    optimizer.zero_grad()
    head(features).pow(2).mean().backward()
    optimizer.step()
