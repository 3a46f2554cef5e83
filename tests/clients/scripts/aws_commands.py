"""The ``aws`` command line, many times in one process: arguments of a command as a line of JSON in, exit status and output as one out.

Each command goes through the program's own entry point; only starting Python and importing it is done once.
"""

import contextlib
import io
import json
import sys

from awscli.clidriver import main

for line in sys.stdin:
    said, complained = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
        sys.argv = ["aws", *json.loads(line)]
        status = main()
    print(json.dumps([status, said.getvalue(), complained.getvalue()]), flush=True)
