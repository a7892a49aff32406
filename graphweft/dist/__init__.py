"""Several processes that train as one: starting them, what they tell each other, and what happens when one is lost."""
