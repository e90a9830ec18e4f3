# expect: SS604 line 11
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

rng = np.random.default_rng(0)
X, y = rng.normal(size=(40, 3)), rng.integers(2, size=40)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
scaler = StandardScaler()
scaler.fit(X)
X_train, X_test = scaler.transform(X_train), scaler.transform(X_test)
print(LogisticRegression().fit(X_train, y_train).score(X_test, y_test))
