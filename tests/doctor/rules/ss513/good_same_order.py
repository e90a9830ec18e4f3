# expect: nothing
import torch

x = torch.randn(2, 3, 4, 5)
y = x.view(x.size(0), x.size(1), -1)
z = x.reshape(x.shape[0], x.shape[-1], -1)
columns = x.view(-1, x.size(1))
