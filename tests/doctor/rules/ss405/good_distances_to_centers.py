# expect: nothing
import torch

net, score = torch.nn.Linear(4, 2), torch.nn.Linear(4, 1)
centers, levels = torch.randn(5, 2), torch.randn(16)
opt = torch.optim.SGD([*net.parameters(), *score.parameters()], lr=0.1)
for _ in range(5):
    x = torch.randn(16, 4)
    distances = (torch.tanh(net(x)).unsqueeze(1) - centers).norm(dim=2)
    to_levels = (score(x) - levels).abs()
    opt.zero_grad()
    (distances.amin(1) + to_levels.amin(1)).mean().backward()
    opt.step()
