# expect: SS604 line 10
import numpy as np
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold

rng = np.random.default_rng(0)
X, y = rng.normal(size=(40, 9)), rng.integers(2, size=40)
for train, test in KFold(4).split(X):
    reduced = PCA(2).fit_transform(X)
    X_train, X_test = reduced[train], reduced[test]
    print(LogisticRegression().fit(X_train, y[train]).score(X_test, y[test]))
