from tests.kernels.plants import Plant

PLANTS = [
    Plant("rms_norm", "keep_dims=True) / HIDDEN", "keep_dims=True) / COLUMNS", "the mean over padding, too"),
    Plant(
        "rms_norm", "tl.rsqrt(mean_square + eps)", "tl.rsqrt(mean_square)", "tiny rows without eps", "0.0001"
    ),
    Plant(
        "rms_norm",
        "rows % HEADS * head_stride",
        "rows % HEADS * HIDDEN",
        "heads taken for neighbours",
        "[3, 5, 64]",
    ),
    Plant(
        "rms_norm",
        "rows // HEADS * row_stride",
        "rows // HEADS * HIDDEN * HEADS",
        "a view taken for whole",
        "[3, 5, 64]",
    ),
    Plant(
        "rms_norm",
        "residual_out + targets, values.to",
        "residual_out + targets, normed.to",
        "the norm as sum",
        "with residual",
    ),
    Plant("rms_norm", "(columns < HIDDEN)\n", "(columns < HIDDEN - 1)\n", "the last column is left out"),
]
