"""Built-in recipes, and how any recipe is found and called."""
