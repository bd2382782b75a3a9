"""The state of the counters, for monitoring and the admin."""
