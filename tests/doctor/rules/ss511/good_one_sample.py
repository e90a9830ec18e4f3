# expect: nothing
import torch

model = torch.nn.Linear(4, 3).eval()
with torch.no_grad():
    output = model(torch.randn(8, 4))
best = torch.nn.functional.softmax(output[0], dim=0).argmax(dim=-1)
