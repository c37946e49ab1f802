"""The attention refinement module, ARM: coverage of the image by past attention (CoMER, sections 3.4, 3.5, eqs. 15-25).

Names carry shapes: B images, T words that read one (the steps of its decoder rows, row after row), L = h * w feature
cells, H heads, C coverage channels (H or 2 H), x = T * (w + gap) columns of an image's coverage maps side by side,
M = B * h * x.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmerbench.models.layers import Conv2d, float32, running
from hmerbench.models.settings import CoMERSettings


def exclusive_coverage(attention_BCTL: Tensor) -> Tensor:
    """Attention summed over all earlier steps, excluding the current one; 0 at the first.

    Multiplies by a strictly lower triangular matrix: a float cumsum is not deterministic on a GPU, and its gradient
    is slow on a CPU. The search, which decodes step by step, keeps a running sum instead.
    """
    steps = attention_BCTL.shape[-2]
    earlier_TT = torch.ones(steps, steps, dtype=attention_BCTL.dtype, device=attention_BCTL.device).tril(-1)
    return earlier_TT @ attention_BCTL


class MaskedBatchNorm(nn.Module):
    """Batch normalization of refinement terms over the image cells of all steps and rows.

    Values there and running statistics (momentum, unbiased variance) equal those of torch's BatchNorm on a tensor of
    only these cells, but without boolean indexing, which makes the host wait for a GPU.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(heads)

    def forward(self, x_HM: Tensor, valid_M: Tensor) -> Tensor:
        """[H, M] in float32 or float64, normalized over the positions where `valid_M` is True; 0 elsewhere."""
        norm, valid, (mean_H, var_H) = self.bn, valid_M.to(x_HM.dtype), running(self.bn)
        if norm.training:
            batches = norm.num_batches_tracked
            assert batches is not None
            count = valid.sum().clamp(min=1)
            mean_H = (x_HM * valid).sum(1) / count
            var_H = ((x_HM - mean_H[:, None]) * valid).square().sum(1) / count
            with torch.no_grad():
                batches.add_(1)
                # momentum None: the plain average over all batches, as for recalibration
                weight = batches.reciprocal() if norm.momentum is None else norm.momentum
                for old_H, new_H in zip(running(norm), (mean_H, var_H * count / (count - 1).clamp(min=1)), strict=True):
                    old_H.add_((new_H - old_H) * weight)
        scale_H = norm.weight * torch.rsqrt(var_H + norm.eps)
        shift_H = norm.bias - mean_H * scale_H
        return (x_HM * scale_H[:, None] + shift_H[:, None]) * valid


class AttentionRefinement(nn.Module):
    """Predicts from coverage what to subtract from the attention energies.

    Cross-coverage sums the refined attention of the previous layer, self-coverage the unrefined attention of the
    current one. On the channels cross-coverage comes first, unlike in eq. 24.
    """

    def __init__(self, c: CoMERSettings) -> None:
        super().__init__()
        self.cross_coverage, self.self_coverage = c.cross_coverage, c.self_coverage
        self.conv = Conv2d(c.nhead * (c.cross_coverage + c.self_coverage), c.dc, kernel_size=5, padding=2)
        self.proj = nn.Conv2d(c.dc, c.nhead, kernel_size=1, bias=False)
        self.post_norm = MaskedBatchNorm(c.nhead)
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
        """Refinement terms R [B, H, T, L] from coverage; 0 at padding, or undefined there if folded."""
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
