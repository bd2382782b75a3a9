"""The databases of a site: in which one this code works, and whose keys in Redis are whose."""
