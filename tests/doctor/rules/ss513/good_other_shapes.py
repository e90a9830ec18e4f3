# expect: nothing
import torch

x = torch.randn(2, 3, 4)
b, n, d = x.shape
y = x.transpose(1, 2).reshape(b, d, n)
flat = x.view(b, n * d).view(b, n, d)
heads = x.view(b, n, 2, d // 2).transpose(1, 2)
other = torch.randn(4, 6).view(d, n, b)
