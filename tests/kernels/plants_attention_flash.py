from tests.kernels.plants import Plant

PLANTS = [
    Plant(
        "attention_flash", "is_seen &= key <= position", "is_seen &= key < position", "no query sees itself"
    ),
    Plant("attention_flash", "acc * fade[:, None] +", "acc +", "sums not rescaled for a new maximum"),
    Plant(
        "attention_flash",
        "edge = tl.minimum(first + behind + 1, num_keys) // KEYS",
        "edge = tl.cdiv(tl.minimum(first + behind + 1, num_keys), KEYS)",
        "the tile of the causal edge taken for one that all see",
        "M=20 L=20",
    ),
    Plant(
        "attention_flash",
        "end, edge = tl.cdiv(num_keys, KEYS), num_keys // KEYS",
        "end, edge = num_keys // KEYS, num_keys // KEYS",
        "a last tile that is not whole left out",
        "full",
    ),
    Plant("attention_flash", "* LN_2", "", "a sum's logarithm to base 2", "L=23"),
    Plant("attention_flash", "(query_sum * scale)", "query_sum", "dq without the scale", "L=23"),
    Plant("attention_flash", "(key_sum * scale)", "key_sum", "dk without the scale", "L=23"),
    Plant("attention_flash", "range(GROUP * turns)", "range(turns)", "dk, dv of the group's first head only"),
    Plant(
        "attention_flash",
        "(tile_dot(d_out_tile, tl.trans(value_tile)) - taken[:, None])",
        "tile_dot(d_out_tile, tl.trans(value_tile))",
        "what the softmax takes from a gradient left in dq",
        "L=23",
    ),
    Plant(
        "attention_flash",
        "<= query[None, :] + behind",
        "<= query[None, :]",
        "the mask of dk, dv aligned at the first key",
        "L=23",
    ),
    Plant(
        "attention_flash",
        "begin = tl.maximum(first - behind, 0) // QUERIES * QUERIES",
        "begin = tl.cdiv(tl.maximum(first - behind, 0), QUERIES) * QUERIES",
        "the first tile of queries that sees a key left out",
        "L=23",
    ),
]
