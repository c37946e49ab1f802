"""Incremental decoding: each step of a search continues from the previous one instead of reading whole prefixes again.

Names carry shapes: G groups of hypotheses that read one image, M beams of a group, S word slots, L = h * w feature
cells, H heads, E = D / H, D model width, J layers, C coverage channels, V classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from hmerbench.models.coverage import AttentionRefinement
from hmerbench.models.decoder import Attention
from hmerbench.models.inference.reading import Reader, attend
from hmerbench.models.vocab import PAD

ROOM_STEPS = 8  # there are word slots for this many steps before `compact` must free some


class IncrementalDecoder:
    """Decodes one step at a time for M beams in each of G groups; equals reading all prefixes again.

    It is what its words find before them (`decoder.Cache`). Coverage, which excludes the current step, is a running
    sum for each layer but the first. The keys and values of words stay in their slots when beams are reordered;
    `mask_GMS` (0 or -inf) says which slots of its group are part of a beam.
    """

    def __init__(self, reader: Reader, image_G: Tensor, beams: int) -> None:
        self.network, dtype = reader.network.model, reader.network.dtype
        self.memory = [(key[image_G], value[image_G]) for key, value in reader.memory]
        self.hidden_G11L, self.mask_Ghw = reader.hidden_b11L[image_G], reader.mask_bhw[image_G]
        self.place, self.slots = 0, 0  # steps taken and slots written so far
        (G, H, L, E), M, J = self.memory[0][0].shape, beams, len(self.memory)
        self.mask_GMS = torch.full((G, M, ROOM_STEPS * M), float("-inf"), dtype=dtype, device=image_G.device)
        self.root_MM = self.mask_GMS.new_full((M, M), float("-inf")).fill_diagonal_(0)
        self.words_GS2HE = [self.mask_GMS.new_zeros(G, ROOM_STEPS * M, 2, H, E) for _ in range(J)]
        C = arm.conv.in_channels if (arm := self.network.decoder.model.arm) is not None else 0
        self.coverage_GMJCL = torch.zeros(G, M, J - 1, C, L, dtype=reader.network.stream, device=image_G.device)

    @property
    def full(self) -> bool:
        """Whether the beams lack free word slots; `compact` makes room."""
        return self.slots + self.mask_GMS.shape[1] > self.mask_GMS.shape[2]

    def feed(self, tokens_GM: Tensor) -> Tensor:
        """Logits [G, M, V] after one more token per beam, each of which needs a free slot."""
        M = tokens_GM.shape[1]
        self.slots += M
        # a PAD inside a hypothesis is hidden from itself and from all later words, as in the authors' code
        self.mask_GMS[:, :, self.slots - M : self.slots] = self.root_MM[:M, :M].masked_fill(
            (tokens_GM == PAD)[:, None], float("-inf")
        )
        logits_GMV = self.network.step(tokens_GM, self)
        self.place += 1
        return logits_GMV

    def attend(self, j: int, attn: Attention, x_GXD: Tensor) -> Tensor:
        """To the words of each beam."""
        words_GM3HE, words_GS2HE = attn.project(x_GXD), self.words_GS2HE[j][:, : self.slots]
        words_GS2HE[:, -x_GXD.shape[1] :] = words_GM3HE[:, :, 1:]
        return attend(words_GM3HE[:, :, 0], words_GS2HE, self.mask_GMS[:, None, :, : self.slots])

    def refine(self, j: int, arm: AttentionRefinement, seen_GCXL: Tensor) -> Tensor:
        """Coverage by the words of each beam."""
        coverage_GMCL = self.coverage_GMJCL[:, :, j - 1]
        refinement_GHML = arm(coverage_GMCL.transpose(1, 2), self.mask_Ghw)
        coverage_GMCL += seen_GCXL.transpose(1, 2)  # affects later steps only
        return refinement_GHML

    def reorder(self, parents_GM: Tensor) -> None:
        """Let beam m of each group continue what was beam parents[m]; there may be fewer beams than before."""
        G, M, _ = self.mask_GMS.shape
        rows_N = (parents_GM + torch.arange(0, G * M, M, device=parents_GM.device)[:, None]).flatten()
        self.mask_GMS = self.mask_GMS.flatten(0, 1).index_select(0, rows_N).unflatten(0, (G, -1))
        if self.coverage_GMJCL.numel():
            self.coverage_GMJCL = self.coverage_GMJCL.flatten(0, 1).index_select(0, rows_N).unflatten(0, (G, -1))

    def compact(self, live_G: Tensor) -> None:
        """Keep only the groups with the given indices and the slots that are part of some beam; make room for more."""
        if len(live_G) < len(self.hidden_G11L):
            self.memory = [(key[live_G], value[live_G]) for key, value in self.memory]
            self.hidden_G11L, self.mask_Ghw = self.hidden_G11L[live_G], self.mask_Ghw[live_G]
            self.coverage_GMJCL = self.coverage_GMJCL[live_G]
        mask_GMS = self.mask_GMS[live_G, :, : self.slots]
        used_GS = (mask_GMS == 0).any(1)
        self.slots = int(used_GS.sum(1).max())
        slots_GS = used_GS.byte().argsort(dim=1, descending=True, stable=True)[:, : self.slots]
        room = ROOM_STEPS * mask_GMS.shape[1]
        mask_GMS = mask_GMS.gather(2, slots_GS[:, None].expand(-1, mask_GMS.shape[1], -1))
        self.mask_GMS = F.pad(mask_GMS, (0, room), value=float("-inf"))
        for j, words in enumerate(self.words_GS2HE):
            kept_GS2HE = words[live_G[:, None], slots_GS]
            if words.shape[1] < self.slots + room:  # zeros: a mask does not hide NaN
                words = words.new_zeros(len(live_G), 2 * (self.slots + room), *words.shape[2:])
            self.words_GS2HE[j] = words[: len(live_G)]
            self.words_GS2HE[j][:, : self.slots] = kept_GS2HE
