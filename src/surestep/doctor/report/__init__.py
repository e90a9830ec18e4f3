"""How findings are shown: as text, JSON or SARIF, and without those of a baseline."""
