"""Errors shown to users, and messages of GPUs and drivers, shortened and without secrets."""

import re
from urllib.parse import unquote

from hmerbench.evaluation import InputError
from hmerbench.evaluation import printable as printable
from hmerbench.models.files import CheckpointError


class UserError(Exception):
    """Bad input, or a condition that the user can fix.

    Its message is one line that names the file and the fix; `hmerbench` prints it without a traceback.
    """


FAULTS = (UserError, InputError, CheckpointError)  # of a run's files or settings: one line each, without a traceback


class Lost(UserError):
    """This process cannot go on, for no fault of its settings: the same command, run again, can."""


class Diverged(UserError):
    """The loss is no longer finite: a fault of the settings, which tuning counts as a result."""


NO_MEMORY = re.compile(r"out of memory|_ALLOC(ATION)?_FAILED")  # as torch says it, or CUDA, or a library that it loads


def lacks_memory(error: BaseException) -> bool:
    """Whether a GPU has no memory left."""
    said = isinstance(error, RuntimeError) and NO_MEMORY.search(str(error))
    return type(error).__name__ == "OutOfMemoryError" or bool(said)  # torch's; importing torch for it would be slow


def out_of_memory_reason(error: BaseException) -> str:
    """The beginning of a message about memory: "CUDA out of memory. Tried to allocate 2.00 GiB"."""
    return ". ".join(str(error).splitlines()[0].split(". ")[:2]).rstrip(".")


def gpu_failure(error: BaseException) -> str:
    """What CUDA says of a GPU that this process can no longer use; "" if an error is of another kind."""
    said = str(error) if isinstance(error, RuntimeError) and not lacks_memory(error) else ""
    failed = said.startswith(("CUDA error: ", "cuDNN error: ")) and "_STATUS_NOT_SUPPORTED" not in said  # of a library
    return said.splitlines()[0] if failed else ""


def without_secrets(uri: str) -> str:
    """Scheme, host, port and path of a URI for display: no user, password, query, or anything that cannot be told from
    them, whatever characters they hold. The path of a file stays as it is."""
    scheme, mark, rest = uri.partition("://")
    if not mark and re.fullmatch(r"([\w.-]+|\[[\da-fA-F:.]+\]):\d{1,5}", uri):  # host:port, as Ray has it
        return uri
    if not mark:
        return "…" if re.search(r"[@?]|\w:\w", uri) and not uri.startswith("/") else uri
    if not re.fullmatch(r"[\w+.-]+", scheme):
        return "…"
    if rest.startswith("/"):
        return f"{scheme}://{rest.partition('?')[0]}"
    user, _, place = rest.rpartition("@")  # a password may hold "@"
    place = re.split("[?#]", place)[0]
    understood = re.fullmatch(r"([\w.-]*|\[[\da-fA-F:.]+\])(:\d*)?(/.*)?", place) and not re.search("[?#]", user)
    return f"{scheme}://{place if understood else '…'}"


def reason(error: Exception, uri: str) -> str:
    """The text of a driver's error in one short line; its type if the text holds a part of the URI that is not shown.

    The user's name is shown if there is a password.
    """
    user = re.match(r"[^:]+://([^:/@]+):", uri)
    known = set(_words(without_secrets(uri))) | set(user.groups() if user else ())
    hidden = {*_words(uri), *_words(unquote(uri))} - known
    text = " ".join(str(error).split())
    shows_hidden = any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) for word in hidden)
    return type(error).__name__ if shows_hidden or not text else text[:160]


def _words(uri: str) -> list[str]:
    return re.findall(r"[^\s:/?#@&=]+", uri)
