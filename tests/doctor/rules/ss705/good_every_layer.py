# expect: nothing
import torch

layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))
for index, layer in enumerate(layers):
    layers[index] = torch.compile(layer, backend="eager")
print(len(layers))
