# expect: nothing
import numpy as np
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

X = np.random.default_rng(0).normal(size=(40, 3))
X_train, X_test = train_test_split(X, random_state=0)
scaler = StandardScaler().fit(X_train)
X_train, X_test = scaler.transform(X_train), scaler.transform(X_test)
final = StandardScaler().fit(X)
everything = final.transform(X)
