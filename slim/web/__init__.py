"""HTTP over ASGI: the app, its handlers, and the guard round each connection."""
