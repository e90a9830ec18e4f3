# expect: SS604 line 9
import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import MinMaxScaler

df = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 3)), columns=["a", "b", "y"])
scaler = MinMaxScaler()
df[["a", "b"]] = scaler.fit_transform(df[["a", "b"]])
train, test = train_test_split(df, test_size=0.25, random_state=0)
