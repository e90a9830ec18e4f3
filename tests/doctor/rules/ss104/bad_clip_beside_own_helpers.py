# expect: SS104 line 23
import torch


def is_main():
    return True


def log(*values):
    if is_main() and is_main() and is_main() and is_main():
        print(*values)


model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for index in range(12):
    log(index), log(index), log(index), log(index), log(index), log(index), log(index)
    loss = model(torch.randn(8, 4)).pow(2).mean()
    log(loss), log(loss), log(loss), log(loss), log(loss), log(loss), log(loss), log(loss)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
