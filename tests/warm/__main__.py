"""Import torch and surestep, then fork a process for each client: `python -m tests.warm SOCKET`."""

import sys

from tests.warm.server import prepare, run, serve

if __name__ == "__main__":
    base = prepare()
    request = serve(sys.argv[1])
    run(request["words"], base)  # the end of this file is the end of the process
