"""Read the membership attacks of UDP-FL beside what its guarantee allows: Feng et al. (2025), Section 5.6, Table 5.

python examples/errata/udp_attack_table.py
"""

import numpy as np

FPR, EPSILONS = 0.01, (2, 4, 6, 8)
TPR = np.array(  # rows: Shokri, LiRA, Canary; columns: DP-SGD, Laplace, staircase; then epsilon = 2, 4, 6, 8
    [
        [[9, 9, 13, 11], [11, 13, 14, 7], [9, 9, 9, 8]],
        [[13, 14, 17, 11], [9, 13, 11, 9], [8, 8, 9, 9]],
        [[16, 16, 15, 10], [11, 20, 11, 15], [9, 13, 9, 12]],
    ]
).reshape(9, 4) / 1000  # fmt: skip

allowed = {epsilon: min(1.0, float(np.exp(epsilon)) * FPR) for epsilon in EPSILONS}
falls = int(np.sum(TPR[:, 3] < TPR[:, 0]))
print(f"At a false positive rate of 1 %, (2, 1e-5)-DP allows a true positive rate of up to {100 * allowed[2]:.1f} %.")
print(f"Table 5 has {100 * TPR.min():.1f} % to {100 * TPR.max():.1f} % for all mechanisms; guessing has 1 %.")
print(f"From epsilon = 2 to epsilon = 8 the rate falls in {falls} of 9 rows, so that more privacy is not seen to help.")
