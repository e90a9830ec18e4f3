"""Tabular regression with scikit-learn's preprocessing."""

import numpy as np
import torch
from sklearn.metrics import r2_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SEED = 13
np.random.seed(SEED)
torch.manual_seed(SEED)

features = np.random.lognormal(size=(300, 7))
prices = np.log(features[:, 0]) * 2 + np.log(features[:, 1]) + np.random.randn(300) * 0.1

X_train, X_test, y_train, y_test = train_test_split(
    features, prices, test_size=0.2, random_state=SEED
)
scaler = StandardScaler()
X_train = scaler.fit_transform(np.log(X_train))
X_test = scaler.transform(np.log(X_test))

train_ds = TensorDataset(
    torch.tensor(X_train, dtype=torch.float32), torch.tensor(y_train, dtype=torch.float32)
)
test_ds = TensorDataset(
    torch.tensor(X_test, dtype=torch.float32), torch.tensor(y_test, dtype=torch.float32)
)
train_dl = DataLoader(train_ds, batch_size=32, shuffle=True)
test_dl = DataLoader(test_ds, batch_size=32, shuffle=False)


class Regressor(nn.Module):
    def __init__(self, n_features):
        super().__init__()
        self.layer1 = nn.Linear(n_features, 32)
        self.bn1 = nn.BatchNorm1d(32)
        self.layer2 = nn.Linear(32, 16)
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        x = torch.relu(self.bn1(self.layer1(x)))
        x = torch.relu(self.layer2(x))
        return self.out(x)


regressor = Regressor(X_train.shape[1])
mse = nn.MSELoss()
adam = torch.optim.Adam(regressor.parameters(), lr=0.01)

for epoch in range(1, 6):
    regressor.train()
    total = 0
    for xb, yb in train_dl:
        adam.zero_grad()
        y_hat = regressor(xb)
        loss = mse(y_hat, yb.unsqueeze(1))
        loss.backward()
        adam.step()
        total += loss.item() * xb.size(0)

    regressor.eval()
    preds, trues = [], []
    with torch.no_grad():
        for xb, yb in test_dl:
            preds.append(regressor(xb).squeeze(1).numpy())
            trues.append(yb.numpy())
    r2 = r2_score(np.concatenate(trues), np.concatenate(preds))
    print(f"Epoch {epoch}: train {total / len(train_ds):.4f} r2 {r2:.3f}")
