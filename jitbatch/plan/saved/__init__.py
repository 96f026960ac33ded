"""Plans and capacities as files of plain data. Loading runs and imports nothing from a file."""
