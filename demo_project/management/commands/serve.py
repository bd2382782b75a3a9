from functools import partial

from django.contrib.auth import get_user_model
from django.contrib.auth.hashers import make_password
from django.core.management.base import BaseCommand

from demo_project import life, traffic
from demo_project.site import running_site

USERS = 30
VISITABLE = 5  # of these users get notifications, but only visitors read them


say = partial(print, flush=True)  # a pipe would hold it back


class Command(BaseCommand):
    help = "Runs the demo site until Ctrl-C, with a flusher, a fresh database and a Redis of its own."
    requires_system_checks = []  # Redis does not run yet

    def add_arguments(self, parser):
        parser.add_argument("--port", type=int, default=8000, help="port (default: 8000, or the next free one)")

    def handle(self, *, port, **options):
        say("Starting the site. The output of its processes also appears here.")
        try:
            admin = get_user_model()(
                username="admin", password=make_password("admin"), is_staff=True, is_superuser=True
            )

            def settle(users: list) -> None:
                admin.save()
                life.settle([admin, *users])

            with running_site(users=USERS, port=port, quiet=False, settle=settle) as site:
                names = f"{traffic.username(0)} … {traffic.username(VISITABLE - 1)}"
                say(f"{site.url}\n  admin / admin, or {names} / {traffic.PASSWORD}\nPress Ctrl-C to stop it.")
                visitable = [admin, *site.users[:VISITABLE]]
                site.wait_until(lambda: life.go_on(site.users[VISITABLE:], visitable))
        except KeyboardInterrupt:
            say("Stopped.")
