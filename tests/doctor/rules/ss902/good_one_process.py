# expect: nothing
import torch

model = torch.nn.Linear(4, 1)
if torch.cuda.is_available():
    model = model.cuda()
print(model)
