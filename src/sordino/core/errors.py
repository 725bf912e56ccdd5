"""The exceptions that Sordino raises deliberately.

    SordinoError
      SpecError         a configuration that cannot be read or does not make sense
      DataError         client data that cannot be trained on
      ModelError        a model that cannot be trained privately
      BudgetError       a release that the privacy budget cannot pay for
      UnsupportedEvent  an event for which an accountant has no theory
      RunError          a run folder that cannot be written, read or resumed
        LostRound       a round of which nothing is released; the run goes on
      BoundaryError     something not listed as public was about to leave a run

Every message is one line that says what was requested, what was found and what to try.
"""


class SordinoError(Exception):
    """Base class of all errors that Sordino raises deliberately."""


class SpecError(SordinoError):
    """A configuration cannot be read or does not make sense."""


class DataError(SordinoError):
    """Client data cannot be trained on."""


class ModelError(SordinoError):
    """A model cannot be trained privately."""


class BudgetError(SordinoError):
    """The privacy budget cannot pay for a release."""

    public: str | None = None  # message for others, where the message itself is only for the owner of the data


class UnsupportedEvent(SordinoError):  # noqa: N818 (the name reads better without a suffix)
    """An accountant has no theory for an event that it was given."""


class RunError(SordinoError):
    """A run folder cannot be written, read or resumed."""


class LostRound(RunError):  # noqa: N818 (the name reads better without a suffix)
    """Nothing of a round is released, because too few clients were drawn or answered.

    The round stays charged. The message is public: it says nothing about single clients, and no exact numbers.
    """


class BoundaryError(SordinoError):
    """Something that is not listed as public was about to leave a run."""
