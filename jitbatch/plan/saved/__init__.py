"""Plans and capacities as files that are data alone: nothing in a file is run or imported."""
