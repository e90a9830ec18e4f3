# expect: SS511 line 6
import torch

model = torch.nn.Linear(4, 3).eval()
with torch.no_grad():
    prediction = torch.softmax(model(torch.randn(8, 4)), dim=0).argmax(dim=1)
