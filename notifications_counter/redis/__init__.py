"""The Redis behind a cache of the site: what is sent to it, over which connections, and what if it does not answer."""
