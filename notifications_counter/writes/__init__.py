"""A change, from the statement of the ORM to Redis."""
