"""GraphWeft trains graph neural networks fast, on graphs of any size, on the hardware at hand."""
