"""BTTR's joint search (BTTR, section 3.4), by the rules of the authors' program.

Every image is read in one direction, then in the other, by a beam that narrows by one with each hypothesis it
completes, until no beam is left or `max_len` is reached. Incomplete hypotheses are then dropped, but for the best one
if none is complete. Each hypothesis is scored by the opposite direction, too, and only the sum of both is divided by
length ** alpha: beams are ranked by plain sums.

Names carry shapes: b images, M beams of an image, N = b * M rows, R hypotheses rescored together, T steps, D model
width, L = h * w feature cells, V classes.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from models.bttr import BTTR
from models.decoder import Decoder, bidirectional_targets
from models.inference.beam_search import log_probabilities
from models.inference.options import Hypothesis, SearchOptions
from models.inference.searcher import View
from models.layers import float32
from models.vocab import EOS, PAD, SOS

MAX_WORDS = 2**10  # hypotheses * steps rescored at once
NEVER = float("-inf")
STARTS: dict[Literal["l2r", "r2l"], int] = {"l2r": SOS, "r2l": EOS}
Found = tuple[list[int], float]  # tokens in the order of the search, without start and end; their log-probability


class CachedDecoder:
    """Decodes one step at a time from the keys and values of all words so far; for a decoder without coverage."""

    def __init__(self, decoder: Decoder, features_bhwD: Tensor, mask_bhw: Tensor) -> None:
        self.decoder, self.steps = decoder, 0
        memory_bLD, mask_bL = features_bhwD.flatten(1, 2), mask_bhw.flatten(1)
        layers = decoder.model.layers
        self.cells = [layer.multihead_attn.project_memory(memory_bLD) for layer in layers]
        self.words = [layer.self_attn.project_memory(memory_bLD[:, :0]) for layer in layers]  # none yet
        self.hidden_b11L, self.hidden_NT = mask_bL[:, None, None], mask_bL[:, :0]

    def feed(self, tokens_bM: Tensor) -> Tensor:
        """Logits [b, M, V] after one more token per beam; at first, there is one beam per image."""
        decoder, tokens_N1 = self.decoder, tokens_bM.reshape(-1, 1)
        self.hidden_NT = torch.cat((self.hidden_NT, tokens_N1 == PAD), dim=1)  # as in the authors' program
        x_N1D = decoder.norm(decoder.word_embed(tokens_N1) + decoder.pos_enc.pe[self.steps])
        self.steps += 1
        for j, layer in enumerate(decoder.model.layers):
            attn, (keys, values) = layer.self_attn, self.words[j]
            key, value = attn.project_memory(x_N1D)
            self.words[j] = keys, values = torch.cat((keys, key), dim=2), torch.cat((values, value), dim=2)
            weights = attn.weigh(attn.energies(attn.project_query(x_N1D), keys), self.hidden_NT[:, None, None])
            x_bMD = layer.norm1(x_N1D + attn.read(weights, values)).view(*tokens_bM.shape, -1)
            attn, (keys, values) = layer.multihead_attn, self.cells[j]
            weights = attn.weigh(attn.energies(attn.project_query(x_bMD), keys), self.hidden_b11L)
            x_N1D = layer.finish(x_bMD, weights, values).view(x_N1D.shape)
        return float32(decoder.proj(x_N1D)).view(*tokens_bM.shape, -1)

    def reorder(self, parents_bM: Tensor) -> None:
        """Let beam m of each image continue what was beam parents[m]; M may differ from that before."""
        b = len(parents_bM)
        rows_bM = torch.arange(len(self.hidden_NT), device=parents_bM.device).view(b, -1).gather(1, parents_bM)
        self._keep(rows_bM.flatten())

    def compact(self, live_b: Tensor) -> None:
        """Keep only the images with the given indices."""
        rows_bM = torch.arange(len(self.hidden_NT), device=live_b.device).view(len(self.hidden_b11L), -1)
        self.cells = [(keys[live_b], values[live_b]) for keys, values in self.cells]
        self.hidden_b11L = self.hidden_b11L[live_b]
        self._keep(rows_bM[live_b].flatten())

    def _keep(self, rows_N: Tensor) -> None:
        self.words = [(keys[rows_N], values[rows_N]) for keys, values in self.words]
        self.hidden_NT = self.hidden_NT[rows_N]


class BTTRSearcher:
    """Reads images with a network in evaluation mode. Raises ValueError for one in training mode."""

    def __init__(self, model: BTTR) -> None:
        if model.training:
            raise ValueError("a network in training mode drops out at random; call model.eval() before it reads")
        self.model = model

    @torch.inference_mode()
    def __call__(self, views: Sequence[View], options: SearchOptions) -> list[list[Hypothesis]]:
        """The hypotheses of each image, best first; in a tie left-to-right ones come first, then those found earlier.

        `views` are images and their masks at one or several sizes, whose log-probabilities are averaged. With direction
        l2r or r2l nothing is rescored. Raises ValueError for more beams than classes.
        """
        if options.beam_size > (classes := len(self.model.vocabulary)):
            raise ValueError(f"beam_size must be at most the {classes} classes, not {options.beam_size}")
        memories = [self.model.encode(*view) for view in views]
        results: list[list[Hypothesis]] = [[] for _ in views[0][0]]
        for direction, start in STARTS.items():
            if options.direction not in (direction, "both"):
                continue
            decoders = [CachedDecoder(self.model.decoder, *memory) for memory in memories]
            for image, found in enumerate(beam_search(decoders, start, options)):
                ids = [tokens if start == SOS else tokens[::-1] for tokens, _ in found]
                own = [(features[image : image + 1], mask[image : image + 1]) for features, mask in memories]
                both = options.direction == "both"
                reverse = self.rescore(own, ids, SOS + EOS - start, options) if both else [0.0] * len(found)
                for tokens, (_, forward), backward in zip(ids, found, reverse, strict=True):
                    length = max(len(tokens), 1) ** options.alpha
                    scores = ((forward + backward) / length, forward / length, backward / length)
                    results[image].append(Hypothesis(tuple(tokens), *scores, direction))
        return [sorted(hypotheses, key=lambda h: h.score, reverse=True) for hypotheses in results]

    def rescore(
        self, memories: Sequence[tuple[Tensor, Tensor]], ids: list[list[int]], start: int, options: SearchOptions
    ) -> list[float]:
        """Log-probability of hypotheses of one image, given left to right, read in the direction that has this start.

        A PAD among the tokens does not count.
        """
        sums: list[float] = []
        size = max(1, MAX_WORDS // (max(map(len, ids)) + 1))
        for first in range(0, len(ids), size):
            targets = bidirectional_targets(ids[first : first + size])
            inputs_RT, outputs_RT = (x.chunk(2)[start == EOS].to(memories[0][0].device) for x in targets)
            logits = (self.model.decode(*memory, inputs_RT) for memory in memories)
            logp_RT = log_probabilities(logits, options).gather(-1, outputs_RT[..., None])[..., 0]
            sums += logp_RT.masked_fill(outputs_RT == PAD, 0).sum(1).tolist()
        return sums


def beam_search(decoders: Sequence[CachedDecoder], start: int, options: SearchOptions) -> list[list[Found]]:
    """The hypotheses of each image in one direction, in the order of their completion."""
    hidden = decoders[0].hidden_b11L
    b, device = len(hidden), hidden.device
    found: list[list[Found]] = [[] for _ in range(b)]
    image_b, wanted_b1 = torch.arange(b, device=device), torch.full((b, 1), options.beam_size, device=device)
    tokens_bMT, sums_bM = torch.full((b, 1, 1), start, device=device), torch.zeros(b, 1, device=device)
    for _ in range(1, options.max_len):
        logp_bMV = log_probabilities((decoder.feed(tokens_bMT[..., -1]) for decoder in decoders), options)
        V = logp_bMV.shape[-1]
        sums_bM, index_bM = (sums_bM[..., None] + logp_bMV).flatten(1).topk(int(wanted_b1.max()))
        parents_bM, words_bM = index_bM // V, index_bM % V
        live_bM = torch.arange(sums_bM.shape[1], device=device) < wanted_b1
        ending_bM = live_bM & (words_bM == SOS + EOS - start)
        for i, m in ending_bM.nonzero().tolist():  # in the order of rank
            tokens = tokens_bMT[i, parents_bM[i, m], 1:].tolist()
            found[int(image_b[i])].append((tokens, float(sums_bM[i, m])))
        wanted_b1 = wanted_b1 - ending_bM.sum(1, keepdim=True)
        if not wanted_b1.any():
            return found
        # open beams first, in order of rank
        sums_bM, kept_bM = sums_bM.masked_fill(~live_bM | ending_bM, NEVER).sort(dim=1, descending=True, stable=True)
        sums_bM, kept_bM = sums_bM[:, : wanted_b1.max()], kept_bM[:, : wanted_b1.max()]
        parents_bM, words_bM = parents_bM.gather(1, kept_bM), words_bM.gather(1, kept_bM)
        tokens_bMT = torch.cat((tokens_bMT.take_along_dim(parents_bM[..., None], 1), words_bM[..., None]), dim=2)
        live_b = wanted_b1[:, 0].nonzero()[:, 0]
        for decoder in decoders:
            decoder.reorder(parents_bM)
            if len(live_b) < len(image_b):
                decoder.compact(live_b)
        image_b, wanted_b1, tokens_bMT, sums_bM = (x[live_b] for x in (image_b, wanted_b1, tokens_bMT, sums_bM))
    best = zip(image_b.tolist(), tokens_bMT[:, 0, 1:].tolist(), sums_bM[:, 0].tolist(), strict=True)
    for image, tokens, total in best:
        found[image] = found[image] or [(tokens, total)]
    return found
