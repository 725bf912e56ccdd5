"""Take the definition of local DP at its word: Fu et al. (2024), Definition 2.4, outcome by outcome.

A report says which of two people sent it, and a random number behind that.

python examples/errata/fu_pointwise.py
"""

import numpy as np

N = 1_000_000  # numbers that follow the name; both people draw one of them with equal probability
alice = np.concatenate([np.full(N, 1 / N), np.zeros(N)])  # probability of each of the 2 N possible reports
bob = np.concatenate([np.zeros(N), np.full(N, 1 / N)])

pointwise = max(np.max(alice - bob), np.max(bob - alice))
over_sets = np.sum(np.maximum(alice - bob, 0))
print(f"Definition 2.4 holds with epsilon = 0 and delta = {pointwise:g}, as it looks at one report at a time.")
print(f"For sets of reports delta is {over_sets:g}: every report tells who sent it.")
