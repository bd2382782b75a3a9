"""A site under traffic, and a tormentor who kills, stops and breaks what it has: ``python -m tests.torment``."""
