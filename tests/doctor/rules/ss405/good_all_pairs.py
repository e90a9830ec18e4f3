# expect: nothing
import torch
from torch.nn.functional import l1_loss

encoder = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05)
for _ in range(10):
    codes, others = encoder(torch.randn(8, 4)), encoder(torch.randn(8, 4))
    loss = l1_loss(codes[:, None, :], others[None, :, :])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
