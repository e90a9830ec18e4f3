# expect: nothing
import numpy as np
from sklearn.impute import SimpleImputer

X = np.random.default_rng(0).normal(size=(40, 3))
X[3, 1] = np.nan
X = SimpleImputer(strategy="constant").fit_transform(X)
n = 30
X_train = X[:n]
X_test = X[n:]
