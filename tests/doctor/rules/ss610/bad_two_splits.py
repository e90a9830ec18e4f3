# expect: SS610 line 11; watch: nothing
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

rng = np.random.default_rng(0)
X, y = rng.normal(size=(20, 4)), np.arange(20) % 2
X_train, X_test = train_test_split(X)
y_train, y_test = train_test_split(y)
model = LogisticRegression()
model.fit(X_train, y_train)
