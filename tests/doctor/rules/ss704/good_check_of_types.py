# expect: nothing
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
for dtype in (torch.float32, torch.float64):
    layer = nn.Linear(4, 3).to(device, dtype)
    labels = torch.randint(low=0, high=3, size=(8,))
    x = torch.ones(8, 4, dtype=dtype, device=device)
    nn.functional.cross_entropy(layer(x), labels.to(device)).backward()
