# expect: nothing
import torch
from torch.nn.functional import cosine_embedding_loss

encoder = torch.nn.Linear(8, 4)
optimizer = torch.optim.Adam(encoder.parameters())
for _ in range(10):
    sign = 2 * torch.randint(2, (16,)) - 1
    optimizer.zero_grad()
    first, second = encoder(torch.randn(16, 8)), encoder(torch.randn(16, 8))
    cosine_embedding_loss(first, second, sign).backward()
    optimizer.step()
