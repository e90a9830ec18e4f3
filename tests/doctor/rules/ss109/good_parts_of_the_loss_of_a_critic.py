# expect: nothing
import torch

critic = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
one = torch.tensor(1.0)
for _ in range(6):
    real, fake = torch.randn(8, 4), torch.randn(8, 4)
    optimizer.zero_grad()
    of_real, of_fake = critic(real).mean(), critic(fake).mean()
    of_real.backward(-one, retain_graph=True)
    of_fake.backward(one, retain_graph=True)
    between = (0.5 * real + 0.5 * fake).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    (10 * (slope.norm(dim=1) - 1).pow(2).mean()).backward()
    optimizer.step()
