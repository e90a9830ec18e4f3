# expect: nothing; watch: SS408 line 14
import torch
from torch import nn

embed, head = nn.Embedding(50, 8), nn.Linear(8, 2)
optimizer = torch.optim.AdamW([*embed.parameters(), *head.parameters()], lr=1e-3)
for step in range(10):
    x, labels = embed(torch.randint(50, (4, 6))), torch.randint(2, (4,))
    lengths = torch.tensor([6, 4, 2, 0])  # one sequence is empty
    is_padding = torch.arange(6) >= lengths[:, None]
    weights = x.mean(2).masked_fill(is_padding, -torch.inf).softmax(1)
    loss = nn.functional.cross_entropy(head((weights[..., None] * x).sum(1)), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
