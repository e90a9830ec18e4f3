# expect: nothing
import torch

model = torch.nn.Linear(4, 3)
x, y = torch.randn(32, 4), torch.randint(3, (32,))
worst_accuracy, largest_loss, best_score = 1.0, 0.0, -1e9
for _ in range(5):
    logits = model(x)
    accuracy = (logits.argmax(1) == y).float().mean().item()
    loss = torch.nn.functional.cross_entropy(logits, y).item()
    score = -loss
    if accuracy < worst_accuracy:
        worst_accuracy = accuracy
    if loss > largest_loss:
        largest_loss = loss
    if score > best_score:
        best_score = score
