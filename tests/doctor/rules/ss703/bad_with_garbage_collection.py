# expect: SS703 line 17
import gc

import torch
from torch.cuda import empty_cache

net = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(2):
    for _ in range(5):
        loss = net(torch.randn(8, 4)).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        del loss
        gc.collect()
        empty_cache()
