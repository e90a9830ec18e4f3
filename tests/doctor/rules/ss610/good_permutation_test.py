# expect: nothing
import numpy as np
from sklearn.linear_model import LogisticRegression

X, y = np.random.randn(20, 4), np.arange(20) % 2
score = LogisticRegression().fit(X, y).score(X, y)
chance = LogisticRegression().fit(X, np.random.permutation(y)).score(X, y)
