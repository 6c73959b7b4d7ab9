"""Views of a fit for its user, while it runs."""
