"""The command line: parse, call, print. No decision is made here."""
