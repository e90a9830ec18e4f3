# expect: nothing; watch: SS203 line 11
import torch

backbone, head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.1)
for _ in range(12):
    features = torch.relu(backbone(torch.randn(8, 4)))
    loss = head(features.detach()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
