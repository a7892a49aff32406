"""Where features lie."""
