"""What the compiled core computes, in plain Python: the oracle of its tests, and what runs where it is missing."""
