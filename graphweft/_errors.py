"""The exception tree. Every message is one line: what was expected, what came.

Comes in: a failed check anywhere. Goes out: one class per kind of failure, all under :class:`GraphWeftError`; those
that a caller of plain Python would expect as ``ValueError`` or ``IndexError`` are those too.
"""


class GraphWeftError(Exception):
    """Base of all errors that GraphWeft raises itself."""


class ShapeError(GraphWeftError, ValueError):
    """An array has the wrong shape, width or number of rows."""


class DtypeError(GraphWeftError, TypeError):
    """An array has an element type that the operation does not take."""


class IndexRangeError(GraphWeftError, IndexError):
    """An id lies outside the range it indexes."""


class GraphError(GraphWeftError, ValueError):
    """A graph's parts contradict each other."""


class DataError(GraphWeftError, ValueError):
    """The content of a file or folder is wrong or not understood."""


class DownloadError(GraphWeftError, OSError):
    """A dataset could not be fetched."""


class ConfigError(GraphWeftError, ValueError):
    """An option has a value that is not allowed."""


class MemoryBudgetError(ConfigError):
    """A run does not fit its memory budget.

    Args:
        text: The message, one line.
        least: Smallest sufficient budget in bytes; 0 if it is not known.
        reached: Bytes that were requested when the budget was used up, if ``least`` was not known; else 0.
    """

    def __init__(self, text: str, least: int = 0, reached: int = 0) -> None:
        super().__init__(text)
        self.least, self.reached = least, reached


class IRError(GraphWeftError, ValueError):
    """A program breaks a rule of the intermediate representation."""


class PassError(GraphWeftError, RuntimeError):
    """A compiler pass produced a program that does not verify. The message names the pass and those before it."""


class NativeError(GraphWeftError, RuntimeError):
    """The native core failed for a reason other than the caller's input."""


class CheckpointError(GraphWeftError, ValueError):
    """A checkpoint is damaged or belongs to another run."""


class RankError(GraphWeftError, RuntimeError):
    """Processes that train together cannot go on: one was lost, or they were started on different things.

    Args:
        text: One line; empty where another process says it.
        status: What the command ends with.
    """

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status


class MissingPackageError(GraphWeftError, ImportError):
    """An optional package is needed and not installed; names it."""


class FieldError(GraphWeftError, KeyError):
    """A user function reads a field that was not given."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UserCodeError(GraphWeftError, RuntimeError):
    """A user function does something that message passing does not define. The message names its line."""


class DenseSizeError(GraphWeftError, MemoryError):
    """Sparse features would have to be made dense, and the rows are larger than allowed."""


class DenseFeaturesWarning(UserWarning):
    """Sparse features were made dense for a function that needs dense rows. The message names the function and the
    size.
    """


class FallbackWarning(UserWarning):
    """Code runs in a slower way than intended, such as a function that could not be compiled."""


class RecompileWarning(UserWarning):
    """A user function is compiled in every call, because a number that it reads changes between calls."""


class CertificateWarning(UserWarning):
    """A compiler pass changed a result on a small graph and is left out of this program. Results stay correct."""


class DataWarning(UserWarning):
    """Data are used as given, but probably not as intended. The message names the data and the remedy."""


class UnsteadyWarning(UserWarning):
    """Measured times vary so much that their means say little; names the steps."""
