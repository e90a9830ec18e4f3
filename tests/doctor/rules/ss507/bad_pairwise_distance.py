# expect: SS507 line 6
import torch

encoder = torch.nn.Linear(4, 2)
z = encoder(torch.randn(8, 4))
distance = torch.sqrt(((z[:, None] - z[None]) ** 2).sum(-1))
distance.mean().backward()
