"""What a user sees of a fit while it runs."""
