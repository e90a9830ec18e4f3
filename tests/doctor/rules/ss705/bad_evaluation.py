# expect: SS705 line 9
import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
model.eval()
batches = [torch.randn(8, 4) for _ in range(3)]
with torch.inference_mode():
    for x in batches:
        fast = torch.compile(model, backend="eager")
        print(fast(x).shape)
