"""Weights files of language models: safetensors with sizes, switches and words in the header."""

from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter

from hmerbench.models.errors import CheckpointError, one_line
from hmerbench.models.language import LanguageModel, Lexicon
from hmerbench.models.language_config import LanguageConfig
from hmerbench.models.weights import pack_tensors, read_tensors, with_weights

FORMAT = "hmerbench-language-1"


def pack_language_model(model: LanguageModel) -> bytes:
    """A weights file: the model's tensors, its settings and its words."""
    return pack_tensors(
        model.state_dict(), {"format": FORMAT, "model": asdict(model.config), "words": model.lexicon.words}
    )


def load_language_model(path: Path) -> LanguageModel:
    """The model in a file of `pack_language_model`, on the CPU, in evaluation mode.

    Raises CheckpointError for a missing, damaged or foreign file.
    """
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such weights file; `hmerbench reproduce-lm` makes one")
    try:
        header, state = read_tensors(path)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; delete it, and `hmerbench reproduce-lm` makes it again") from None
    if header.get("format") != FORMAT:
        raise CheckpointError(f"{path}: not a language model's weights; give the weights.safetensors of its run folder")
    try:
        config, words = LanguageConfig(**header["model"]), TypeAdapter(list[str]).validate_python(header["words"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: its configuration is unknown ({one_line(error)}); update this suite") from None
    if len(words) * max(map(len, words), default=0) > sum(tensor.nbytes for tensor in state.values()):
        raise CheckpointError(f"{path}: they do not fit its {len(words):,} words; give weights of this model")
    lexicon = Lexicon(words)
    return with_weights(path, lambda: LanguageModel(config, lexicon), state).eval()
