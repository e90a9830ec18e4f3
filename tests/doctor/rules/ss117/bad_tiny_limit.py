# expect: nothing; watch: SS117 line 13
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(25):
    x, y = torch.randn(32, 8), torch.randint(4, (32,))
    loss = cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    clip_grad_norm_(model.parameters(), max_norm=1e-3)
    optimizer.step()
