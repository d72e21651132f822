from tests.kernels.plants import Plant

PLANTS = [
    Plant("kv_write", "rows = (slot // B * KVH + heads)", "rows = (slot // B + heads)", "blocks of one head"),
    Plant("kv_write", "+ slot % B  #", "+ 0  #", "each token at the begin of its block"),
    Plant(
        "kv_write",
        "heads[:, None] * value_head_stride",
        "heads[:, None] * D",
        "heads taken for neighbours",
        "a view",
    ),
    Plant("kv_write", "& (dims < D)", "& (dims < D - 1)", "the last value of a head is left as it was"),
    Plant(
        "kv_write", "key + token * key_stride", "key + token * KVH * D", "a view taken for whole", "a view"
    ),
    Plant(
        "kv_write",
        "torch.int8: 127.0",
        "torch.int8: 128.0",
        "the largest code does not exist",
        "float16 into int8",
    ),
    Plant(
        "kv_write",
        "tl.max(tl.abs(x), axis=1)",
        "tl.max(x, axis=1)",
        "the scale of the largest, not of |x|",
        "float16 into int8",
    ),
    Plant(
        "kv_write",
        "scale == 0.0, 1.0, scale",
        "scale == 0.0, 0.0, scale",
        "a row of zeros divided by 0",
        "float16 into float8",
    ),
    Plant(
        "kv_write",
        "+ 12582912.0) - 12582912.0)",
        "+ 0.0) - 0.0)",
        "cut off, not rounded",
        "float16 into int8",
    ),
    Plant(
        "kv_write",
        "tl.store(v_scales + rows, v_scale",
        "tl.store(v_scales + rows, k_scale",
        "V has K's scale",
        "float16 into int8",
    ),
    Plant("kv_write", "+ ((bits >> 20) & 1)", "+ 0", "ties of fp8 to the smaller", "float8"),
    Plant("kv_write", "< 0.015625", "< 0.0", "the smallest values of fp8", "float8"),
]
