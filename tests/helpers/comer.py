"""Numbers from CoMER's authors: the files of PARITY."""

from functools import partial

from hmerbench.models.comer import CoMER
from hmerbench.models.settings import CoMERSettings
from tests.helpers import parity
from tests.helpers.paths import PARITY

sidecar, arrays = partial(parity.sidecar, folder=PARITY), partial(parity.arrays, folder=PARITY)
VARIANTS = sorted(path.name.removesuffix("_weights.json") for path in PARITY.glob("*_weights.json"))


def authors_model(variant: str) -> CoMER:
    """Our network with the authors' weights, in float32 and evaluation mode."""
    facts = sidecar(f"{variant}_weights")
    switches = {key: facts[key] for key in ("cross_coverage", "self_coverage")}
    model = CoMER(CoMERSettings(**facts["config"], **switches))
    model.load_state_dict(arrays(f"{variant}_weights"))  # strict: names must match
    return model.eval()
