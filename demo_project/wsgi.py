"""The site as a WSGI application; `python -m demo_project.wsgi FD` serves it on an open socket."""

import os
import socket
import sys

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "demo_project.settings")
application = StaticFilesHandler(get_wsgi_application())


def main() -> None:
    import waitress

    listener = socket.socket(fileno=int(sys.argv[1]))
    waitress.serve(application, sockets=[listener], threads=8, ident=None, _quiet=True)


if __name__ == "__main__":
    main()
