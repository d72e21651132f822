from tests.kernels.plants import Plant

PLANTS = [
    Plant("rope", "first * c - second * s", "first * c + second * s", "turned the wrong way"),
    Plant("rope", "tl.load(positions + token)", "token", "the token's place in the step for its position"),
    Plant("rope", "source + HALF", "source + PAIRS", "the second half taken for a power of two", "D=80"),
    Plant(
        "rope", "tl.program_id(1) * HEADS", "tl.program_id(1)", "heads beyond the first sixteen", "heads=18"
    ),
    Plant(
        "rope",
        "token * row_stride + heads",
        "token * NUM_HEADS * HALF * 2 + heads",
        "a view taken for whole",
        "a view",
    ),
]
