# expect: nothing
import numpy as np
import torch
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

X_train, X_test = train_test_split(np.random.rand(40, 3), test_size=0.25)
scaler = StandardScaler()
train = torch.tensor(scaler.fit_transform(X_train))
test = torch.tensor(scaler.fit_transform(np.load("test.npy")))
