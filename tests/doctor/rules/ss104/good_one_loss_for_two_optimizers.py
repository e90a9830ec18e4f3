# expect: nothing
import torch

encoder, head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
opt_e = torch.optim.SGD(encoder.parameters(), lr=0.1)
opt_h = torch.optim.SGD(head.parameters(), lr=0.1)
for _ in range(5):
    opt_e.zero_grad()
    opt_h.zero_grad()
    head(encoder(torch.randn(8, 4))).pow(2).mean().backward()
    opt_h.step()
    torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
    opt_e.step()
