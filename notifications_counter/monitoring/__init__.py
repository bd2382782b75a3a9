"""Problems, figures and activity of the counters, for monitoring and the admin."""
