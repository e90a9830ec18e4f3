# expect: nothing
import torch

nets = [torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)]
opt_a = torch.optim.SGD(nets[0].parameters(), lr=0.1)
opt_b = torch.optim.SGD(nets[1].parameters(), lr=0.1)
sched_a = torch.optim.lr_scheduler.LinearLR(opt_a)
for _ in range(4):
    opt_a.zero_grad()
    opt_b.zero_grad()
    sum(net(torch.randn(8, 4)).pow(2).mean() for net in nets).backward()
    opt_a.step()
    sched_a.step()
    opt_b.step()
