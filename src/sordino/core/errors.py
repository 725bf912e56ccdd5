"""Everything Sordino raises on purpose.

    SordinoError
      SpecError       a configuration that cannot be read or does not make sense
      DataError       client data that cannot be trained on
      ModelError      a model that cannot be trained privately
      BudgetError     a release the privacy budget cannot pay for
      UnsupportedEvent  an accountant was handed an event it has no theory for
      RunError        a run folder that cannot be written, read or resumed
      BoundaryError   something that nobody has listed as public was about to leave a run

A message says what was asked, what was found and what to try, in one line.
"""


class SordinoError(Exception):
    """The root: `except SordinoError` catches every deliberate error."""


class SpecError(SordinoError):
    """A configuration that cannot be read or does not make sense."""


class DataError(SordinoError):
    """Client data that cannot be trained on."""


class ModelError(SordinoError):
    """A model that cannot be trained privately."""


class BudgetError(SordinoError):
    """A release the privacy budget cannot pay for."""

    public: str | None = None  # what others may be told, where the message is for the owner of the data alone


class UnsupportedEvent(SordinoError):  # noqa: N818 (the name reads better without a suffix)
    """An accountant was handed an event it has no theory for."""


class RunError(SordinoError):
    """A run folder that cannot be written, read or resumed."""


class BoundaryError(SordinoError):
    """Something that nobody has listed as public was about to leave a run."""
