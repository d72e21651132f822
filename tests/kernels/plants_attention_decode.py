from tests.kernels.plants import Plant

OP = "attention_decode"
PLANTS = [
    Plant(
        OP,
        "is_seen = position < seq_len",
        "is_seen = position < seq_len - 1",
        "the last key is not seen",
        "D=80",
    ),
    Plant(OP, "is_seen = position < seq_len", "is_seen = position <= seq_len", "a key too many", "D=80"),
    Plant(OP, "position >= seq_len - WINDOW", "position > seq_len - WINDOW", "a window too short", "window"),
    Plant(
        OP,
        "tl.maximum(seq_len - WINDOW, 0) // KEYS",
        "0",
        "tiles from the first key on",
        "window=20 splits=3",
    ),
    Plant(
        OP,
        "head = kv_head * GROUP + row",
        "head = row * KVH + kv_head",
        "other heads than the key head's",
        "D=80",
    ),
    Plant(OP, "// KVH * ROWS +", "// KVH +", "heads beyond the first rows", "70/1"),
    Plant(OP, "+ position // B,", "+ (position + 1) // B,", "the next block at a block's last slot", "D=80"),
    Plant(OP, "block.to(tl.int64) * KVH", "block.to(tl.int64) * GROUP", "blocks as large as a group", "20/1"),
    Plant(
        OP,
        "mixed = mixed * fading[:, None] + tile_dot(weights, value.to",
        "mixed = mixed + tile_dot(weights, value.to",
        "values without rescale",
        "lens=[16, 17, 0, 70]",
    ),
    Plant(
        OP, "mixed_odd * fading[:, None]", "mixed_odd", "odd columns without rescale", "lens=[2, 70] KV int8"
    ),
    Plant(OP, "total = total * fading +", "total = total +", "the sum of weights without rescale"),
    Plant(
        OP,
        "tl.where(total == 0.0, 1.0, total)",
        "total",
        "padding divided by its sum",
        "lens=[16, 17, 0, 70] splits=1",
    ),
    Plant(
        OP,
        "v_scale_ptr + slot",
        "v_scale_ptr + position",
        "scales in the order of keys",
        "lens=[2, 70] KV int8",
    ),
    Plant(
        OP,
        "tl.load(k_scale_ptr + slot",
        "tl.load(v_scale_ptr + slot",
        "the values' scales for keys",
        "lens=[2, 70] KV",
    ),
    Plant(OP, "V_UNITS.get(cache.dtype, 1.0)", "1.0", "weights below what float16 holds", "values of"),
    Plant(
        OP, "_tanh(scores) * (SOFT_CAP * LOG2_E)", "_tanh(scores) * SOFT_CAP", "a cap of other units", "cap"
    ),
    Plant(OP, "best + tl.log2(total)", "best", "a split's sum left out", "B=4"),
    Plant(OP, "partial * share[:, None]", "partial", "splits mixed as equals", "B=4"),
    Plant(OP, "num_live = tl.cdiv(num_tiles, a_split)", "num_live = SPLITS", "empty splits read", "B=4"),
]
