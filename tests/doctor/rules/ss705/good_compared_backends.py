# expect: nothing
import torch

model = torch.nn.Linear(4, 1)
for backend in ("eager", "aot_eager"):
    compiled = torch.compile(model, backend=backend)
    with torch.inference_mode():
        print(backend, compiled(torch.randn(8, 4)).shape)
