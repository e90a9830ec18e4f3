"""Knowledge distillation: a student learns from the labels and from a teacher."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset, random_split


def mlp(hidden, p=0.0):
    return nn.Sequential(
        nn.Linear(8, hidden), nn.ReLU(), nn.Dropout(p), nn.Linear(hidden, hidden), nn.ReLU(),
        nn.Linear(hidden, 4),
    )  # fmt: skip


def train(model, train_loader, epochs, learning_rate):
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.Adam(model.parameters(), lr=learning_rate)
    model.train()
    for epoch in range(epochs):
        running_loss = 0.0
        for inputs, labels in train_loader:
            optimizer.zero_grad()
            outputs = model(inputs)
            loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
        print(f"Epoch {epoch + 1}/{epochs}, Loss: {running_loss / len(train_loader)}")


def train_knowledge_distillation(
    teacher, student, train_loader, epochs, learning_rate, T=2.0, soft_weight=0.25, ce_weight=0.75
):
    ce_loss = nn.CrossEntropyLoss()
    optimizer = optim.Adam(student.parameters(), lr=learning_rate)
    teacher.eval()
    student.train()
    for epoch in range(epochs):
        running_loss = 0.0
        for inputs, labels in train_loader:
            optimizer.zero_grad()
            with torch.no_grad():
                teacher_logits = teacher(inputs)
            student_logits = student(inputs)
            soft_targets = F.softmax(teacher_logits / T, dim=-1)
            soft_prob = F.log_softmax(student_logits / T, dim=-1)
            soft_loss = F.kl_div(soft_prob, soft_targets, reduction="batchmean") * T**2
            label_loss = ce_loss(student_logits, labels)
            loss = soft_weight * soft_loss + ce_weight * label_loss
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
        print(f"Epoch {epoch + 1}/{epochs}, Loss: {running_loss / len(train_loader)}")


def test(model, test_loader):
    model.eval()
    correct, total = 0, 0
    with torch.no_grad():
        for inputs, labels in test_loader:
            predicted = model(inputs).argmax(dim=1)
            total += labels.size(0)
            correct += (predicted == labels).sum().item()
    print(f"Test Accuracy: {100 * correct / total:.2f}%")
    return correct / total


if __name__ == "__main__":
    torch.manual_seed(42)
    x = torch.randn(400, 8)
    data = TensorDataset(x, x[:, :4].argmax(dim=1))
    train_set, test_set = random_split(data, [320, 80])
    train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=80, shuffle=False)
    teacher, student = mlp(48, p=0.1), mlp(12)
    train(teacher, train_loader, epochs=4, learning_rate=1e-2)
    test(teacher, test_loader)
    train_knowledge_distillation(teacher, student, train_loader, epochs=3, learning_rate=1e-2)
    test(student, test_loader)
