# expect: SS701 line 13; watch: SS701 line 11
import torch
from torch.nn.functional import cross_entropy

net = torch.nn.Linear(4, 3)
optimizer = torch.optim.AdamW(net.parameters())
losses = []
for _ in range(20):
    loss = cross_entropy(net(torch.randn(8, 4)), torch.randint(3, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss)
print(sum(losses) / len(losses))
