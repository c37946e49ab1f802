"""An expression on its way from a source into an archive."""

from dataclasses import dataclass, field


@dataclass
class Row:
    """An expression on its way into the archive."""

    id: str
    split: str
    tokens: tuple[str, ...]
    writer: str
    latex: str  # as the source has it
    changes: dict[str, int]  # of the caption, by rule
    prepared: tuple[str, ...]  # what was done to the image
    start: int = field(repr=False)  # of the image in the spool
    size: int = field(repr=False)
