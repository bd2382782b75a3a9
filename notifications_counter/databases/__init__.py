"""The databases of a site: which one this code works in, and which keys in Redis belong to it."""
