# expect: nothing; ranks: SS904 line 17
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.distributed.init_process_group("gloo")
data = TensorDataset(torch.randn(32, 4))
sizes = {"0": 4, "1": 8}
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=sizes[os.environ["RANK"]], sampler=sampler)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(1):
    sampler.set_epoch(epoch)
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).abs().mean().backward()
        optimizer.step()
