# expect: nothing
import torch

for width in (4, 8):
    model = torch.nn.Linear(width, 1)
    compiled = torch.compile(model, backend="eager")
    with torch.inference_mode():
        print(compiled(torch.randn(8, width)).shape)
