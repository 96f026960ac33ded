"""The parts of the page of benchmarks, each made of one result file."""
