"""Records that a run leaves out before it deals with any of them: the rule is public, the counts are the owner's alone.

What a schema does to the rows and values of a table is counted where the table is read: data/treatment.py."""

from __future__ import annotations

from collections.abc import Sequence

from sordino.spec.spec import Spec


def rules(spec: Spec) -> tuple[str, ...]:
    """Return which records are left out, in words that depend on the spec alone."""
    if spec.unit != "user":
        return ()
    records = f", at most {spec.records_per_user} records of them" if spec.records_per_user is not None else ""
    text = f"of each user, the records in at most clients_per_user = {spec.clients_per_user} clients are used{records}"
    return (f"{text}; how many others there are is in private/notes.txt",)


def by_users(spec: Spec, before: Sequence[int], after: Sequence[int]) -> tuple[str, ...]:
    """Return, for the owner alone, how many records and clients the bounds on users leave out.

    Args:
        spec: the spec, whose bounds apply.
        before: number of records of each client.
        after: the same of the clients that still have records.
    """
    total, left = sum(before), sum(before) - sum(after)
    if not left:
        return ()
    made_up = not str(spec.partition or "natural").startswith("natural")
    way = "name the clients that hold whole users (client_column), or raise" if made_up else "raise"
    gone = f" {len(before) - len(after)} clients have none left." if len(after) < len(before) else ""
    return (
        f"{left:,} of {total:,} records ({left / total:.0%}) are left out, since unit = user with {_bounds(spec)} "
        f"uses no more of a user.{gone} To use more of them, {way} these bounds: a user then costs more noise.",
    )


def by_partition(spec: Spec, records: int, dealt: int) -> tuple[str, ...]:
    """Return, for the owner alone, how many records belong to clients that the partition leaves out."""
    if dealt == records:
        return ()
    return (f"{records - dealt:,} of {records:,} records are left out by partition = {spec.partition}.",)


def without_private(spec: Spec, dealt: int, remaining: int) -> tuple[str, ...]:
    """Return, for the owner alone, how many records with private attributes the last clients do without."""
    if dealt == remaining:
        return ()
    return (f"{dealt - remaining:,} of {dealt:,} records are left out by without_private = {spec.without_private}.",)


def _bounds(spec: Spec) -> str:
    records = f" and records_per_user = {spec.records_per_user}" if spec.records_per_user is not None else ""
    return f"clients_per_user = {spec.clients_per_user}{records}"
