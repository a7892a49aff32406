"""Stand-alone programs: the plan that the library would run, written as C++."""
