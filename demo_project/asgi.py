"""The site as an ASGI application; `python -m demo_project.asgi FD` serves it on an open socket."""

import os
import socket
import sys

from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "demo_project.settings")
application = ASGIStaticFilesHandler(get_asgi_application())


def main() -> None:
    import uvicorn

    # "critical": uvicorn reports streams that are open when it stops as errors.
    config = uvicorn.Config(application, lifespan="off", log_level="critical", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run([socket.socket(fileno=int(sys.argv[1]))])


if __name__ == "__main__":
    main()
