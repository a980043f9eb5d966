import atexit
import os
import sys


def end() -> None:
    """Ends the process where threads of the SDK still run. Python 3.11 ends such threads where they stand, and where that is in compiled code the process now and then aborts, with everything done."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
