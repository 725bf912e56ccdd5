"""The report of one run: what its records say, for the public or for the owner of the data."""
