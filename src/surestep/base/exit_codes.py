"""The exit codes of the commands; docs/running.md has a table of them."""

DONE = 0
FAILED = 1  # also findings, and a difference
WRONG_USAGE = 2  # also any failure of `ckpt diff`, as of diff and cmp
STOPPED = 75  # EX_TEMPFAIL of sysexits.h: the same command resumes
INTERRUPTED = 130  # by Ctrl-C, as in a shell
