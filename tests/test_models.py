import pytest

from notifications_counter.models import Notification

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    "url",
    ["/search/?q=a b&page=2#top", "?page=2", "#comment-7", "exports/7/", "/straße/", "http://example.com",
     "https://example.com:8000/a?b=c", "HTTPS://EXAMPLE.COM/"],
)  # fmt: skip
def test_links_are_shown_as_they_are(url):
    assert Notification(url=url).safe_url == url


@pytest.mark.parametrize(
    "url",
    ["", "JavaScript:alert(1)", " javascript:alert(1)", "java\nscript:alert(1)", "\x01javascript:alert(1)",
     "javascript://example.com/%0aalert(1)", "data:text/html,<script>alert(1)</script>", "file:///etc/passwd",
     "//", " //example.com", "///example.com", "/\\example.com", "\\\\example.com", "/\t/example.com",
     "/.//example.com", "/a/..//example.com", "/..///example.com", "/.\\\\example.com",
     "http:example.com", "http:///example.com", "http://", "http://[", "https://a\nb/"],
)  # fmt: skip
def test_other_schemes_and_hidden_hosts_are_not(url):
    assert Notification(url=url).safe_url == ""
