import math

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand

from demo_project import life, traffic
from demo_project.site import require_packages, running_site

USERS = 30
VISITABLE = 5  # of these users get notifications, but only visitors read them


class Command(BaseCommand):
    help = (
        "Runs the demo site until Ctrl-C, with a flusher and a fresh database. Uses the Redis at "
        "REDIS_URL, or starts one."
    )
    requires_system_checks = []  # Redis does not run yet

    def add_arguments(self, parser):
        parser.add_argument("--port", type=int, default=8000, help="port (default: 8000, or the next free one)")

    def handle(self, *, port, **options):
        require_packages()
        self.say("Starting the site. The output of its processes also appears here.")
        try:
            with running_site(users=USERS, port=port, quiet=False) as site:
                admin = get_user_model().objects.create_superuser("admin", password="admin")
                life.settle([admin, *site.users])
                names = f"{traffic.username(0)} … {traffic.username(VISITABLE - 1)}"
                self.say(f"{site.url}\n  admin / admin, or {names} / {traffic.PASSWORD}\nPress Ctrl-C to stop it.")
                visitable = [admin, *site.users[:VISITABLE]]
                site.wait_until(lambda: life.go_on(site.users[VISITABLE:], visitable), math.inf)
        except KeyboardInterrupt:
            self.say("Stopped.")

    def say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()  # a pipe would hold it back
