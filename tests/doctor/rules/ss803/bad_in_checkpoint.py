# expect: SS803 line 17
import io

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)


net = Net()
optimizer = torch.optim.AdamW(net.parameters())
file = io.BytesIO()
torch.save({"model": net, "optimizer": optimizer.state_dict(), "epoch": 3}, file)
