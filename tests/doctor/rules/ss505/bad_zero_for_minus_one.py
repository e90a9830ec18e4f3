# expect: nothing; watch: SS505 line 11
import torch
from torch.nn.functional import cosine_embedding_loss

encoder = torch.nn.Linear(8, 4)
optimizer = torch.optim.Adam(encoder.parameters())
for _ in range(10):
    first, second = torch.randn(16, 8), torch.randn(16, 8)
    is_same = torch.randint(2, (16,))
    optimizer.zero_grad()
    cosine_embedding_loss(encoder(first), encoder(second), is_same).backward()
    optimizer.step()
