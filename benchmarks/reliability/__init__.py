"""Runs killed in the middle of a save: what each library makes of them."""
