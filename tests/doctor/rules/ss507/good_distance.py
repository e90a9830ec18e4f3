# expect: nothing
import torch

encoder = torch.nn.Linear(4, 2)
z, centers = encoder(torch.randn(8, 4)), torch.randn(3, 2)
squared = ((z[:, None] - z[None]) ** 2).sum(-1)
near = torch.sqrt(((z[:, None] - centers[None]) ** 2).sum(-1))
(torch.sqrt(squared + 1e-12).mean() + near.mean()).backward()
