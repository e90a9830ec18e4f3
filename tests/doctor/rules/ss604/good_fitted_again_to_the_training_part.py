# expect: nothing
import numpy as np
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

rng = np.random.default_rng(0)
X, y = rng.normal(size=(40, 3)), rng.integers(2, size=40)
scaler = StandardScaler().fit(X)
split = train_test_split(X, y, random_state=0)
scaler.fit(split[0])
X_train, X_test = scaler.transform(split[0]), scaler.transform(split[1])
