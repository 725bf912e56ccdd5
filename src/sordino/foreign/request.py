"""What a server asks of a foreign app's training function, in the form in which it goes to the daemon of a site.

The arrays travel by number, since a frame does not keep their order, which the server expects in the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from sordino.core.errors import SpecError
from sordino.foreign import frames
from sordino.foreign.terms import RunTerms

VERB = "foreign"  # by which the daemon knows such a request
ROUND = "server-round"  # in the config: the round, from 1
KEYS = {"verb", "app", "kind", "records", "names", "config", "run"}  # of the header

Named = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class TrainRequest:
    """A training message without what the app has no use for: who sent it, when, and to which node."""

    app: str  # digest of the app, or "" if its folder is unknown
    kind: str  # type of the message: train or train.ACTION
    records: tuple[str, str]  # names of the record of arrays and of the config in the message
    config: dict[str, Any]
    run: dict[str, Any]  # config of the run, as in Flower's Context
    arrays: Named

    @property
    def terms(self) -> RunTerms:
        """The terms of the run; raises SpecError if the config has none."""
        return RunTerms.read(self.config)

    @property
    def round(self) -> int:
        """The round, from 0; raises SpecError if the config does not say it."""
        number = self.config.get(ROUND)
        if not isinstance(number, int) or isinstance(number, bool):
            raise SpecError("the message does not say its round.")
        return number - 1

    def frame(self, **more: Any) -> bytes:
        """Return the request as a frame, with further entries in its header."""
        header = {
            "verb": VERB,
            "app": self.app,
            "kind": self.kind,
            "records": list(self.records),
            "names": list(self.arrays),
            "config": self.config,
            "run": self.run,
        }
        return frames.packed(header | more, numbered(self.arrays))

    @classmethod
    def read(cls, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> TrainRequest:
        """Return the request in a frame; raise SpecError if it holds none."""
        records, names = header.get("records"), header.get("names")
        texts = isinstance(header.get("app"), str) and isinstance(header.get("kind"), str)
        configs = isinstance(header.get("config"), dict) and isinstance(header.get("run"), dict)
        pair = isinstance(records, list) and len(records) == 2 and all(isinstance(name, str) for name in records)
        if set(header) != KEYS or not (texts and configs and pair):
            raise SpecError("the letter holds no message for training.")
        if header["kind"].split(".")[0] != "train":
            raise SpecError("the letter asks for something else than training.")
        first, second = header["records"]
        return cls(
            header["app"], header["kind"], (first, second), header["config"], header["run"], renamed(arrays, names)
        )


def numbered(arrays: Mapping[str, NDArray[Any]]) -> Named:
    """Return arrays under their numbers."""
    return {str(i): value for i, value in enumerate(arrays.values())}


def renamed(arrays: Mapping[str, NDArray[Any]], names: object) -> Named:
    """Return arrays under their names, in the order of the names; raise SpecError if they do not match."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SpecError("the names of the arrays are missing.")
    if set(arrays) != {str(i) for i in range(len(names))} or len(set(names)) != len(names):
        raise SpecError("the arrays do not match their names.")
    return {name: arrays[str(i)] for i, name in enumerate(names)}
