# expect: nothing
import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
optimizers = {
    parameter: torch.optim.Adam([parameter], lr=0.01, foreach=False)
    for parameter in model.parameters()
}


def step(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(step)
for _ in range(5):
    model(torch.randn(16, 8)).mean().backward()
