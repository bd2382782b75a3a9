"""An ASGI server in a thread."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from servers import HOST


@contextmanager
def serving(application: Any) -> Iterator[int]:
    """Serve an application, on the port that is yielded."""
    config = uvicorn.Config(application, lifespan="off", log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()
