"""Commands of ``graphweft`` beside training: read here, done by modules that are imported when they are called."""
