# expect: SS412 line 12
import torch

model = torch.nn.Linear(4, 3)
x, y = torch.randn(32, 4), torch.randint(3, (32,))
best_loss, waited = 0.0, 0
for _ in range(5):
    val_loss = torch.nn.functional.cross_entropy(model(x), y).item()
    if best_loss >= val_loss:
        waited += 1
    else:
        best_loss = val_loss
