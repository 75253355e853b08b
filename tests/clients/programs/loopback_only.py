"""Runs a client in a process that an attempt to reach anything but 127.0.0.1 ends, with exit code 77.

loopback_only.py PROGRAM.py ARGUMENT...
loopback_only.py -m MODULE ARGUMENT...
"""

import os
import runpy
import sys

HERE = (None, "127.0.0.1", b"127.0.0.1", "", "localhost")


def hook(event: str, arguments: tuple) -> None:
    if event == "socket.connect":
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else None
    elif event == "socket.getaddrinfo":
        host = arguments[0]
    else:
        return
    if host not in HERE:
        os.write(2, f"{event} to {host!r}\n".encode())
        os._exit(77)


sys.addaudithook(hook)
if sys.argv[1] == "-m":
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    del sys.argv[:1]
    runpy.run_path(sys.argv[0], run_name="__main__")
