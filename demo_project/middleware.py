from django.http import HttpRequest, HttpResponseBase
from django.utils.deprecation import MiddlewareMixin


class StrictPolicy(MiddlewareMixin):
    """Browsers load and run nothing but what comes from this site, in files of its own. Django 6 has a setting."""

    policy = "default-src 'self'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        response.headers["Content-Security-Policy"] = self.policy
        return response
