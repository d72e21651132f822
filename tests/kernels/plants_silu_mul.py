from tests.kernels.plants import Plant

PLANTS = [
    Plant("silu_mul", "tl.load(source + INNER", "tl.load(source + BLOCK", "up begins after the block"),
    Plant("silu_mul", "gate * tl.sigmoid(gate)", "tl.sigmoid(gate)", "the gate itself is forgotten"),
    Plant("silu_mul", "tl.program_id(1) * BLOCK", "tl.program_id(1)", "columns beyond the first block"),
    Plant("silu_mul", "columns < INNER", "columns < INNER // 2", "half of the output is never written"),
]
