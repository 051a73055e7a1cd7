"""What a planned time means that nobody has measured, and the GPU that plans reckon with."""

from __future__ import annotations

GPU_FLOPS = 4e14
"""Operations a second of a GPU that is asked for and not here: 40 % of an H100's dense bfloat16."""

ABOUT = {
    "estimate": "~ is an estimate from counted operations, right to a factor of a few; "
    "--probe measures",
    "gpu_rate": f"~ is counted operations at {GPU_FLOPS / 1e12:.0f} TFLOP/s a GPU, since none is "
    "here to time: 40 % of an H100's dense bfloat16, which small matrices do not reach",
}
"""What ``~`` before a time means, by its source."""
