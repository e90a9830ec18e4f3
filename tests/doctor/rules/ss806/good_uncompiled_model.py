# expect: nothing
import io

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)


model = Net()
compiled = torch.compile(model)
print(type(compiled))
torch.save(model.state_dict(), io.BytesIO())
