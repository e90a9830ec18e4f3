# expect: nothing
import numpy as np
from sklearn.model_selection import KFold
from sklearn.preprocessing import StandardScaler

X = np.random.default_rng(0).normal(size=(40, 3))
for train, test in KFold(4).split(X):
    scaler = StandardScaler().fit(X[train])
    X_train, X_test = scaler.transform(X[train]), scaler.transform(X[test])
