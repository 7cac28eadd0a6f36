"""What every engine's optimizer is: AdamW with clipped gradients."""

MAX_GRADIENT_NORM = 1.0
"""Source: Brown et al. 2020 (GPT-3), appendix B."""

LEARNING_RATE = 3e-4
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1
"""Source of all three: Touvron et al. 2023 (Llama), section 2.2; weight decay on matrices only."""
