"""Tasks, plain loops and cases that the tests of the laws share."""
