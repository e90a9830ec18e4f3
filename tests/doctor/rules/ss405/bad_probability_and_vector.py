# expect: SS405 line 11
import torch

torch.manual_seed(0)
x = torch.randn(32, 3)
y = (x[:, 0] > 0).float()
net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
opt = torch.optim.Adam(net.parameters())
for _ in range(5):
    probability = torch.sigmoid(net(x.bfloat16().float()))
    brier = (y - probability).square().mean()
    opt.zero_grad()
    brier.backward()
    opt.step()
