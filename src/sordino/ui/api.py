"""What the page may ask for: every address, and the function that answers it. All of them read, and none writes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sordino.core.errors import RunError, SordinoError
from sordino.core.record import plain
from sordino.core.version import VERSION
from sordino.report.reading import Audience, harmless
from sordino.ui.documents import Documents, as_json
from sordino.ui.live import OpenCurves
from sordino.ui.overview import LONGEST, PAGE, Overview
from sordino.ui.shelf import Shelf, Shelved

Query = Mapping[str, str]
Answer = dict[str, Any]
Planner = Callable[[Mapping[str, float]], Mapping[str, Any]]  # numbers of the question -> `sordino plan --json`


class ViewAnswers:
    """The answers of the server about some folders."""

    def __init__(self, folders: Sequence[Path], audience: Audience = "public", planner: Planner | None = None) -> None:
        """Look at the folders.

        Raises:
            RunError: if one of them is not there or holds no runs.
        """
        self.audience, self.planner = audience, planner
        self.shelf = Shelf(folders)
        self.overview, self.live, self.documents = Overview(self.shelf), OpenCurves(), Documents(audience)
        self._plans = Documents(audience)  # apart from the reports, which do not wait for a planner
        self._computing = threading.Lock()  # sliders ask often, and a processor is shared with the runs
        self._planning = threading.Lock()  # apart from it: a plan takes seconds
        self._pages: dict[str, Callable[[Query], Answer]] = {
            "about": self._about, "runs": self._runs, "compare": self._compare, "epsilon": self._epsilon,
            "curves": self._curves, "noise": self._noise, "plan": self._plan, "attacks": self._attacks,
            "ledger": self._ledger, "chain": self._chain, "federation": self._federation,
        }  # fmt: skip
        self._of_run: dict[str, Callable[[Shelved], Answer]] = {
            "live": self._live, "report": self.documents.of, "attacks": self._attacks_of, "line": self._line,
        }  # fmt: skip

    def answer(self, parts: Sequence[str], query: Query) -> Answer | None:
        """Return the answer to the address /api/PARTS; None if there is no such address.

        What cannot be answered for a reason that a person should read is {"error": sentence}.
        """
        try:
            if len(parts) == 1 and parts[0] in self._pages:
                return self._pages[parts[0]](query)
            if len(parts) == 3 and parts[0] == "run" and parts[2] in self._of_run:
                return self._of_run[parts[2]](self.shelf.item(parts[1]))
        except SordinoError as error:
            return {"error": harmless(str(error))}
        except OSError as error:  # a folder that vanishes while it is read
            return {"error": f"the records cannot be read at this moment ({error.strerror or type(error).__name__})."}
        except (
            ArithmeticError,
            LookupError,
            MemoryError,
            RecursionError,
            TypeError,
            ValueError,
            AttributeError,
        ) as error:
            return {"error": f"the records cannot be shown: {type(error).__name__}: {harmless(str(error))[:200]}"}
        return None

    def _about(self, query: Query) -> Answer:
        return {
            "version": VERSION,
            "audience": self.audience,
            "folders": [harmless(str(f)) for f in self.shelf.folders],
            "federations": [harmless(f.name) for f in self.shelf.federations],
        }

    def _runs(self, query: Query) -> Answer:
        size = _number(query, "size", PAGE)
        page, sort = _number(query, "page", 1), query.get("sort") or "-changed"
        return plain(self.overview.page(page, size, sort, query.get("find", "")[:LONGEST]))  # type: ignore[no-any-return]

    def _live(self, item: Shelved) -> Answer:
        return plain(self.live.of(item).look(item))  # type: ignore[no-any-return]

    def _line(self, item: Shelved) -> Answer:
        return plain(self.overview.line(item).__dict__)  # type: ignore[no-any-return]

    def _attacks_of(self, item: Shelved) -> Answer:
        from sordino.ui import gallery

        return as_json(gallery.of_run(item, self.audience))

    def _compare(self, query: Query) -> Answer:
        from sordino.ui import side_by_side

        chosen = list(dict.fromkeys(filter(None, query.get("runs", "").split(","))))
        if not 2 <= len(chosen) <= side_by_side.MOST:
            raise RunError(f"choose 2 to {side_by_side.MOST} runs in the list to see them beside each other.")
        items = [self.shelf.item(id) for id in chosen]
        if any(item.kind != "run" for item in items):
            raise RunError("a comparison has a page of its own: choose single runs.")
        names = [item.name for item in items]
        runs = [
            side_by_side.read(
                item,
                self.live.of(item),
                name if names.count(name) == 1 else f"{name} ({item.place})",
            )
            for item, name in zip(items, names, strict=True)
        ]
        return as_json(side_by_side.document(runs))

    def _epsilon(self, query: Query) -> Answer:
        return self._computed("epsilon", query)

    def _curves(self, query: Query) -> Answer:
        return self._computed("curves", query)

    def _computed(self, what: str, query: Query) -> Answer:
        from sordino.ui import calculator

        noise, rate, steps, delta = calculator.asked(query, "noise", "rate", "steps", "delta")
        with self._computing:
            return as_json(getattr(calculator, what)(noise, rate, int(steps), delta, calculator.relation_of(query)))

    def _noise(self, query: Query) -> Answer:
        from sordino.ui import calculator

        epsilon, rate, steps, delta = calculator.asked(query, "epsilon", "rate", "steps", "delta")
        with self._computing:
            return as_json(calculator.noise_for(epsilon, rate, int(steps), delta, calculator.relation_of(query)))

    def _plan(self, query: Query) -> Answer:
        from sordino.ui import calculator

        if self.planner is None:
            raise RunError("this view has no planner.")
        names = ["clients", "records", "parameters", "epsilon", "delta", "client_rate", "batch_rate"]
        names += ["rounds"] if query.get("rounds") else []
        numbers = dict(zip(names, calculator.asked(query, *names), strict=True))
        calculator.check_drawn(numbers)
        given = {name: int(v) if name in calculator.COUNTS else v for name, v in numbers.items()}
        with self._planning:
            return self._plans.kept(f"plan {given}", None, lambda: calculator.plan(self.planner(given)))  # type: ignore[misc]

    def _attacks(self, query: Query) -> Answer:
        from sordino.ui import gallery

        document, page, pages = gallery.document(self.shelf, self.audience, _number(query, "page", 1))
        return {**as_json(document), "page": page, "pages": pages}

    def _ledgers(self) -> list[Path]:
        from sordino.ui import spending

        comparisons = [item.path for item in self.shelf.items() if item.kind == "comparison"]
        return spending.places((*self.shelf.folders, *comparisons))

    def _chosen(self, query: Query) -> tuple[list[Path], int]:
        from sordino.ui import spending

        if self.audience != "owner":
            raise RunError(spending.CLOSED)
        found, number = self._ledgers(), _number(query, "ledger", 1) - 1
        if not found:
            raise RunError("there is no ledger yet: the first run makes one, and every run is charged to it.")
        return found, min(max(number, 0), len(found) - 1)

    def _ledger(self, query: Query) -> Answer:
        from sordino.ui import spending

        found, number = self._chosen(query)
        path, page = found[number], _number(query, "page", 1)
        made = self.documents.kept(f"ledger {path} {page}", spending.mark(path), lambda: spending.document(path, page))
        return {**made, "ledgers": [harmless(str(p)) for p in found], "ledger": number + 1, "page": page}

    def _chain(self, query: Query) -> Answer:
        from sordino.ui import spending

        found, number = self._chosen(query)
        return spending.checked(found[number])

    def _federation(self, query: Query) -> Answer:
        from sordino.ui import federations

        number = _number(query, "number", 1) - 1
        if not 0 <= number < len(self.shelf.federations):
            raise RunError("none of the folders that are shown is that of a federation.")
        return as_json(federations.document(self.shelf.federations[number], self.audience))


def _number(query: Query, name: str, default: int) -> int:
    text = query.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else default
