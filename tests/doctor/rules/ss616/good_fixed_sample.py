# expect: nothing
import torch

mean, log_std = torch.zeros(4, requires_grad=True), torch.zeros(4, requires_grad=True)
optimizer = torch.optim.Adam([mean, log_std], lr=0.1)
for _ in range(100):
    torch.manual_seed(0)
    sample = mean + torch.randn_like(mean) * log_std.exp()
    optimizer.zero_grad()
    ((sample - 1).square().sum() - log_std.sum()).backward()
    optimizer.step()
