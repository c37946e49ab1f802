"""The decoder of a search, one step at a time: it goes on from the step before instead of reading whole prefixes again.

Names carry shapes: G groups of hypotheses that read one image, M beams of a group, S word slots, L = h * w feature
cells, H heads, E = D / H, D model width, J layers, C coverage channels, V classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from models.inference.folded_decoder import Reader
from models.vocab import PAD

ROOM_STEPS = 8  # for so many an incremental decoder has word slots until it must be tidied


class IncrementalDecoder:
    """One step at a time for M beams in each of G groups; equals reading all prefixes again.

    Coverage is exclusive: what a layer must be refined by is known before the step, from running sums, so one
    call of the ARM serves all layers. Words' keys and values stay in the slot they were written to when beams
    change places; `mask_GMS` (0 or -inf) tells on which slots of its group a beam is built.
    """

    def __init__(self, reader: Reader, image_G: Tensor, beams: int) -> None:
        folded = self.folded = reader.decoder
        self.arm, self.h, self.padded = folded.arm, reader.h, reader.padded
        self.memory = [(key[image_G], value[image_G]) for key, value in reader.memory]
        self.hidden_G11L = reader.mask_bL[image_G][:, None, None]
        self.steps, self.slots = 0, 0  # fed so far, written so far
        (G, H, E, L), M, J = self.memory[0][0].shape, beams, len(folded.layers)
        self.mask_GMS = torch.full((G, M, ROOM_STEPS * M), float("-inf"), dtype=folded.dtype, device=image_G.device)
        self.root_MM = self.mask_GMS.new_full((M, M), float("-inf")).fill_diagonal_(0)
        self.words_GS2HE = [self.mask_GMS.new_zeros(G, ROOM_STEPS * M, 2, H, E) for _ in range(J)]
        C = self.arm.channels if self.arm is not None else 0
        self.coverage_GMJCL = torch.zeros(G, M, J - 1, C, L, dtype=folded.stream, device=image_G.device)
        self.first_G1 = torch.arange(0, G * M, M, device=image_G.device)[:, None]  # the first beam of every group

    @property
    def full(self) -> bool:
        """Whether no word slot is free: `tidy` makes room."""
        return self.slots == self.mask_GMS.shape[-1]

    def feed(self, tokens_GM: Tensor) -> Tensor:
        """Logits [G, M, V] after one more token of every beam; needs a free slot per beam."""
        (G, M), folded = tokens_GM.shape, self.folded
        x_ND = folded.embed(tokens_GM.flatten(), self.steps)
        old, self.slots, self.steps = self.slots, self.slots + M, self.steps + 1
        # an inner PAD is hidden from all words after it and from itself, as in the authors' code
        self.mask_GMS[:, :, old : self.slots] = self.root_MM.masked_fill((tokens_GM == PAD)[:, None], float("-inf"))
        mask_G1MS = self.mask_GMS[:, None, :, : self.slots]
        refinement_HGMJL = self._refinement()

        def read_words(j: int, words_N3HE: Tensor) -> Tensor:
            words_GM3HE, words_GS2HE = words_N3HE.unflatten(0, (G, M)), self.words_GS2HE[j][:, : self.slots]
            words_GS2HE[:, old:] = words_GM3HE[:, :, 1:]
            return folded.layers[j].look_at_words(words_GM3HE[:, :, 0], words_GS2HE, mask_G1MS)

        def refinement(j: int, looked_GCML: Tensor) -> Tensor:
            self.coverage_GMJCL[:, :, j - 1] += looked_GCML.transpose(1, 2)  # for the steps after this one
            assert refinement_HGMJL is not None
            return refinement_HGMJL[:, :, :, j - 1].transpose(0, 1)

        logits_NV = folded.step(x_ND, self.memory, self.hidden_G11L if self.padded else None, read_words, refinement)
        return logits_NV.view(G, M, -1)

    def _refinement(self) -> Tensor | None:
        """R [H, G, M, J, L] of this step for all layers but the first."""
        if self.arm is None or self.coverage_GMJCL.shape[2] == 0:
            return None
        return self.arm(self.coverage_GMJCL, self.h)

    def reorder(self, parents_GM: Tensor) -> None:
        """Beam m of each group goes on from what was beam parents[m]."""
        rows_N = (parents_GM + self.first_G1).flatten()
        self.mask_GMS = self.mask_GMS.flatten(0, 1).index_select(0, rows_N).view_as(self.mask_GMS)
        if self.arm is not None:
            coverage = self.coverage_GMJCL
            self.coverage_GMJCL = coverage.flatten(0, 1).index_select(0, rows_N).view_as(coverage)

    def tidy(self, live_G: Tensor) -> None:
        """Keeps the groups whose indices are given and the slots that some beam is built on; makes room."""
        if len(live_G) < len(self.first_G1):
            self.memory = [(key[live_G], value[live_G]) for key, value in self.memory]
            self.hidden_G11L, self.coverage_GMJCL = self.hidden_G11L[live_G], self.coverage_GMJCL[live_G]
            self.first_G1 = self.first_G1[: len(live_G)]
        mask_GMS = self.mask_GMS[live_G, :, : self.slots]
        used_GS = (mask_GMS == 0).any(1)
        self.slots = int(used_GS.sum(1).max())
        slots_GS = used_GS.byte().argsort(dim=1, descending=True, stable=True)[:, : self.slots]
        room = ROOM_STEPS * mask_GMS.shape[1]
        mask_GMS = mask_GMS.gather(2, slots_GS[:, None].expand(-1, mask_GMS.shape[1], -1))
        self.mask_GMS = F.pad(mask_GMS, (0, room), value=float("-inf"))
        for j, words in enumerate(self.words_GS2HE):
            kept_GS2HE = words[live_G[:, None], slots_GS]
            if words.shape[1] < self.slots + room:  # zeros, as room must not hold NaN, which a mask does not hide
                words = words.new_zeros(len(live_G), 2 * (self.slots + room), *words.shape[2:])
            self.words_GS2HE[j] = words[: len(live_G)]
            self.words_GS2HE[j][:, : self.slots] = kept_GS2HE
