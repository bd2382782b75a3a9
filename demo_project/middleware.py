from django.http import HttpRequest, HttpResponseBase
from django.utils.deprecation import MiddlewareMixin


class StrictPolicy(MiddlewareMixin):
    """Makes browsers load and run only files of this site. Django 6 has a setting for this."""

    policy = "default-src 'self'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        response.headers["Content-Security-Policy"] = self.policy
        return response
