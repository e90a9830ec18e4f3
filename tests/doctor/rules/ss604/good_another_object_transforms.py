# expect: nothing
import numpy as np
from sklearn.feature_selection import SelectPercentile
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score

rng = np.random.default_rng(0)
X, y = rng.normal(size=(40, 50)), rng.integers(2, size=40)
selector = SelectPercentile(percentile=10)
selector.fit(X, y)
X_selected = SelectPercentile().fit(X[:20], y[:20]).transform(X)
print(cross_val_score(LogisticRegression(), X_selected, y, cv=4).mean())
