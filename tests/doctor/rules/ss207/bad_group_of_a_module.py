# expect: SS207 line 21; watch: SS207 line 25
import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


model = Tagger()
groups = [
    {"params": model.embedding.parameters(), "lr": 1e-4},
    {"params": model.head.parameters(), "lr": 1e-3},
]
optimizer = torch.optim.AdamW(groups, weight_decay=0.05)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randint(10, (4, 5))).pow(2).mean().backward()
    optimizer.step()
