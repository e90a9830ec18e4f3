"""Recipes that ship, and how any recipe is found and called."""
