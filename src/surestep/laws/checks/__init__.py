"""The laws and checks of a program; one module for each."""
