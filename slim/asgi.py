"""The app for hypercorn's own launcher: `hypercorn -k trio slim.asgi:app`, settings from the environment and `.env`.

Importing it reads the settings and puts the guard round hypercorn's connections. A wrong setting ends the process
with one line. The drain is hypercorn's own here (see docs/architecture.md).
"""

import sys

from .compose import prepare
from .errors import ConfigError

try:
    app, _ = prepare({})
except ConfigError as error:
    sys.exit(f"slim-serve: {error}")
