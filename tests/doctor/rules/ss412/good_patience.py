# expect: nothing
import torch

model = torch.nn.Linear(4, 3)
x, y = torch.randn(32, 4), torch.randint(3, (32,))
best_loss, waited = float("inf"), 0
for epoch in range(5):
    val_loss = torch.nn.functional.cross_entropy(model(x), y).item()
    if val_loss > best_loss:
        waited += 1
    else:
        best_loss = val_loss
    if epoch == 0 or not val_loss >= best_loss:
        best_loss = val_loss
