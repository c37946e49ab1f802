"""The attention refinement module, ARM: coverage of the image by past attention (CoMER, sections 3.4, 3.5, eqs. 15-25).

Names carry shapes: B images, T words that read one (the steps of its decoder rows, row after row), L = h * w feature
cells, H heads, C coverage channels (H or 2 H), x = T * (w + gap) columns of an image's coverage maps side by side,
M = B * h * x.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmerbench.models.layers import Conv2d, float32, masked_batch_norm, running


def exclusive_coverage(attention_BCTL: Tensor) -> Tensor:
    """Attention summed over all earlier steps, excluding the current one; 0 at the first.

    Multiplies by a strictly lower triangular matrix: a float cumsum is not deterministic on a GPU, and its gradient
    is slow on a CPU. The search, which decodes step by step, keeps a running sum instead.
    """
    steps = attention_BCTL.shape[-2]
    earlier_TT = torch.ones(steps, steps, dtype=attention_BCTL.dtype, device=attention_BCTL.device).tril(-1)
    return earlier_TT @ attention_BCTL


class MaskedBatchNorm(nn.Module):
    """Batch normalization of refinement terms over the image cells of all steps and rows."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(heads)

    def forward(self, x_HM: Tensor, valid_M: Tensor) -> Tensor:
        """[H, M], normalized over the positions where `valid_M` is True; 0 elsewhere."""
        return masked_batch_norm(self.bn, x_HM[None, :, None], valid_M[None, None, None])[0, :, 0]


class AttentionRefinement(nn.Module):
    """Predicts from coverage what to subtract from the attention energies.

    Cross-coverage sums the refined attention of the previous layer, self-coverage the unrefined attention of the
    current one. On the channels cross-coverage comes first, unlike in eq. 24.
    """

    def __init__(self, heads: int, dc: int, cross_coverage: bool, self_coverage: bool) -> None:
        super().__init__()
        self.cross_coverage, self.self_coverage = cross_coverage, self_coverage
        self.conv = Conv2d(heads * (cross_coverage + self_coverage), dc, kernel_size=5, padding=2)
        self.proj = nn.Conv2d(dc, heads, kernel_size=1, bias=False)
        self.post_norm = MaskedBatchNorm(heads)
        self.folded = False

    @torch.no_grad()
    def fold(self) -> None:
        """Fold the normalization, whose statistics no longer change, into the weights before it. Its shift is left out:
        it is constant per head, and softmax ignores a constant."""
        norm, (_, var_H) = self.post_norm.bn, running(self.post_norm.bn)
        self.proj.weight *= (norm.weight * torch.rsqrt(var_H + norm.eps))[:, None, None, None]
        self.folded = True

    def seen(self, previous_BHTL: Tensor, current_BHTL: Tensor | None) -> Tensor:
        """What words add to the coverage of those after them, [B, C, T, L]: the previous layer's weights, and those of
        this layer before refinement, None without self-coverage."""
        sources = [previous_BHTL] * self.cross_coverage + ([] if current_BHTL is None else [current_BHTL])
        return torch.cat(sources, dim=-3)

    def forward(self, coverage_BCTL: Tensor, mask_Bhw: Tensor) -> Tensor:
        """Refinement terms R [B, H, T, L] from coverage; 0 at padding, and undefined there if folded."""
        (B, C, T, L), (_, h, w) = coverage_BCTL.shape, mask_Bhw.shape
        maps_BTChw = coverage_BCTL.transpose(1, 2).unflatten(-1, (h, w)).to(self.conv.weight.dtype)
        proj_HC = self.proj.weight.flatten(1)
        if self.folded:
            hidden_nhwc = F.relu_(self.conv(maps_BTChw.flatten(0, 1))).permute(0, 2, 3, 1)
            refinement_Hn = proj_HC @ hidden_nhwc.flatten(0, 2).t()
            return refinement_Hn.view(-1, B, T, L).transpose(0, 1)
        # one wide map per image, its words' side by side with the convolution's padding between: four times as fast
        gap = self.conv.kernel_size[1] // 2
        maps_BhTwC = maps_BTChw.permute(0, 3, 1, 4, 2)
        maps_BhTwC = torch.cat((maps_BhTwC, maps_BhTwC.new_zeros(B, h, T, gap, C)), dim=3)
        hidden_BChx = F.relu_(self.conv(maps_BhTwC.flatten(2, 3).permute(0, 3, 1, 2)))
        refinement_MH = F.linear(hidden_BChx.permute(0, 2, 3, 1).flatten(0, 2), proj_HC)
        valid_BhTw = F.pad(~mask_Bhw, (0, gap))[:, :, None].expand(B, h, T, w + gap)
        refinement_HM = self.post_norm(float32(refinement_MH.t().contiguous()), valid_BhTw.flatten())
        refinement_HBhTw = refinement_HM.view(-1, B, h, T, w + gap)[..., :w]
        return refinement_HBhTw.permute(1, 0, 3, 2, 4).flatten(3)

    def of_sequences(self, seen_BCTL: Tensor, mask_Bhw: Tensor, rows: int) -> Tensor:
        """R of whole sequences, given what all their words see; gradients flow to all earlier steps. T holds the steps
        of an image's `rows` sequences, in turn."""
        by_row = seen_BCTL.unflatten(2, (rows, -1)).flatten(1, 2)
        return self(exclusive_coverage(by_row).reshape(seen_BCTL.shape), mask_Bhw)
