"""The metrics of a model in words: how they are called, and which of them are shares."""

from __future__ import annotations

from dataclasses import dataclass

from sordino.report.run.words import figures, percent


@dataclass(frozen=True)
class Metric:
    """A metric as a reader meets it."""

    label: str
    share: bool  # whether it lies between 0 and 1 and is shown in percent
    better: str  # "high", "low", or "" where that is not known
    meaning: str = ""


NAMES = {
    "accuracy": Metric("accuracy", True, "high", "share of the records that the model gets right"),
    "balanced_accuracy": Metric("balanced accuracy", True, "high", "mean of the accuracies of all classes"),
    "f1": Metric("F1", True, "high", "harmonic mean of precision and recall"),
    "macro_f1": Metric("macro F1", True, "high", "mean of the F1 of all classes"),
    "micro_f1": Metric("micro F1", True, "high", "F1 over all labels together"),
    "auc": Metric("AUC", True, "high", "how often a record of a class is ranked above one of another; 50 % by chance"),
    "exact_match": Metric("exact match", True, "high", "share of the records of which all labels are right"),
    "worst_class": Metric("worst class", True, "high", "accuracy of the class that the model knows worst"),
    "class_gap": Metric("gap between classes", True, "low", "accuracy of the best class minus that of the worst"),
    "brier": Metric("Brier score", False, "low", "mean squared error of the predicted probabilities"),
    "calibration_error": Metric(
        "calibration error", True, "low", "mean distance between the predicted probability and the share that is right"
    ),
    "perplexity": Metric("perplexity", False, "low", "exponential of the mean loss of a token"),
    "rmse": Metric("RMSE", False, "low", "root of the mean squared error"),
    "mae": Metric("mean absolute error", False, "low"),
    "r2": Metric("R squared", False, "high", "share of the variance that the model explains"),
    "worst_client": Metric("worst client", True, "", "the figure of the client with the worst one"),
    "client_gap": Metric("gap between clients", True, "low", "difference between the best and the worst client"),
    "client_std": Metric("spread of clients", True, "low", "standard deviation over clients"),
    "loss": Metric("loss", False, "low"),
}
PERSONAL = "personal_"  # of the clients' own models


def metric(name: str, shares: bool = True) -> Metric:
    """Return a metric by its name in the records, also one of one's own or of a plug-in.

    Args:
        name: the name.
        shares: whether clients are compared by a share, and not by an error such as the RMSE.
    """
    if name.startswith(PERSONAL) and len(name) > len(PERSONAL):
        inner = metric(name[len(PERSONAL) :], shares)
        return Metric(f"{inner.label} of the clients' own models", inner.share, inner.better, inner.meaning)
    known = NAMES.get(name)
    if known is None:
        return Metric(name.replace("_", " ")[:80], False, "")
    if name in ("worst_client", "client_gap", "client_std"):
        better = ("high" if shares else "low") if name == "worst_client" else "low"
        return Metric(known.label, known.share and shares, better, known.meaning)
    return known


def value_of(kind: Metric, value: float) -> str:
    """Return a value of a metric in words."""
    return percent(value, 2) if kind.share and 0 <= value <= 1 else figures(value, 4)


def difference(kind: Metric, value: float, reference: float) -> str:
    """Return how far a value lies from a reference, with its sign."""
    gap = value - reference
    text = f"{abs(100 * gap):.2f}" if kind.share else figures(abs(gap))
    sign = "" if text in ("0", "0.00") else "+" if gap > 0 else "-"
    return sign + text + (" points" if kind.share else "")
