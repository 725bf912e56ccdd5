"""Compute Shapley values of a client's private records: Li et al. (2025), Eq. (2) to (4).

python examples/errata/li_ratio.py
"""


def ratio(both: float, general: float, private: float, nobody: float = 0.0) -> float:
    """Return the share of the private records in the Shapley values of Eq. (2), for given accuracies."""
    of_private = ((private - nobody) + (both - general)) / 2
    of_general = ((general - nobody) + (both - private)) / 2
    return of_private / (of_private + of_general)


print("Accuracies 0.8 (all records), 0.7 (general ones) and 0.6 (private ones):")
print(f"  R = {ratio(0.8, 0.7, 0.6):.4f} as in Eq. (3), where a model of no records has accuracy 0;")
print(f"  R = {ratio(0.8, 0.7, 0.6, 0.5):.4f} if the model that the client received has accuracy 0.5;")
print(f"  R = {ratio(0.8, 0.7, 0.6, 0.1):.4f} if it guesses among ten classes.")
print(f"Accuracies 0.6, 0.9 and 0.2: R = {ratio(0.6, 0.9, 0.2):.4f}, a share below zero.")
