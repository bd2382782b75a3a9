"""What a site can see of its counters: problems, figures, activity."""
