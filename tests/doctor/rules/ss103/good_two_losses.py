# expect: nothing
import torch

actor, critic = torch.nn.Linear(4, 2), torch.nn.Linear(4, 1)
opt_a = torch.optim.Adam(actor.parameters(), lr=1e-3)
opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3)
for _ in range(5):
    for net, opt in ((critic, opt_c), (actor, opt_a)):
        opt.zero_grad()
        net(torch.randn(8, 4)).pow(2).mean().backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()
