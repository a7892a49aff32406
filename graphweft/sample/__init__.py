"""Who is in a batch."""
