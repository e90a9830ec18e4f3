# expect: nothing; ranks: nothing
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.distributed.init_process_group("gloo")
data = TensorDataset(torch.randn(64, 4))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, shuffle=False))
model = nn.Linear(4, 3).eval()
with torch.inference_mode():
    predictions = [model(x).argmax(1) for (x,) in loader]
torch.save(torch.cat(predictions), f"predictions-{torch.distributed.get_rank()}.pt")
