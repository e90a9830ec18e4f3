# expect: nothing
import numpy as np
from elsewhere import StandardScaler
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

rng = np.random.default_rng(0)
X, y = rng.normal(size=(40, 3)), rng.integers(2, size=40)
X = StandardScaler().fit_transform(X)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.25, random_state=0)
print(LogisticRegression().fit(X_train, y_train).score(X_test, y_test))
