"""A site with notifications of its own, which installs the counters without ours."""
