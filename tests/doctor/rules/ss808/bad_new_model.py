# expect: SS808 line 22
import io

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


file = io.BytesIO()
torch.save(Net().state_dict(), file)
file.seek(0)
model = Net()
model.load_state_dict(torch.load(file, map_location="cpu"))
model = Net().eval()
with torch.inference_mode():
    print(model(torch.randn(8, 4)).mean())
