"""Kill runs in the middle of a save, and compare how each library resumes them."""
