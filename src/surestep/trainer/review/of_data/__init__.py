"""What rules find in the data of a run before it trains: `find(data)` of each module."""
