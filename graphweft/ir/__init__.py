"""The intermediate representation: one immutable data-flow graph for structure, message passing and dense algebra."""
