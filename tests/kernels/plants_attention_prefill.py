from tests.kernels.plants import Plant

PLAIN = "float32 GQA 3/1 D=64 B=16 lens=['0+2'"
LISTS = "lists=4x32"
PLANTS = [
    Plant(
        "attention_prefill",
        "is_seen = key <= position[:, None]",
        "is_seen = key < position[:, None]",
        "no query sees itself",
        PLAIN,
    ),
    Plant(
        "attention_prefill",
        "key > position[:, None] - WINDOW",
        "key >= position[:, None] - WINDOW",
        "a window of one key more",
        "window=20",
    ),
    Plant(
        "attention_prefill",
        "is_key &= (key > first - WINDOW) | sees_all",
        "is_key &= True",
        "slots behind every window read",
        "window=20",
    ),
    Plant(
        "attention_prefill",
        "inside = tl.minimum(tl.cdiv(",
        "inside = tl.minimum(-1 + tl.cdiv(",
        "the turn of the window's edge taken for one that all see",
        "window=20",
    ),
    Plant(
        "attention_prefill",
        "edge = tl.maximum(first + 1, 0) // KEYS",
        "edge = tl.cdiv(tl.maximum(first + 1, 0), KEYS)",
        "the turn of the causal edge taken for one that all see",
        PLAIN,
    ),
    Plant(
        "attention_prefill",
        "(kv_head * GROUP + row % GROUP)",
        "(kv_head + row % GROUP * KVH)",
        "queries of other key heads",
        "GQA 6/2",
    ),
    Plant(
        "attention_prefill", "acc * fade[:, None] +", "acc +", "sums not rescaled for a new maximum", PLAIN
    ),
    Plant(
        "attention_prefill",
        "first = seq_len - num_queries + first_query",
        "first = first_query",
        "a cached prefix forgotten",
        PLAIN,
    ),
    Plant(
        "attention_prefill", "table + key // B", "table + (key + 1) // B", "a slot in the next block", PLAIN
    ),
    Plant(
        "attention_prefill",
        "tl.where(total == 0.0, 1.0, total)",
        "total",
        "a padding row divided by 0",
        PLAIN,
    ),
    Plant(
        "attention_prefill",
        "score *= tl.load(k_scale + slot, is_key, other=0.0)",
        "score *= 1.0 / 32",
        "the keys' scales forgotten",
        "KV float8_e4m3fn",
    ),
    Plant(
        "attention_prefill",
        "tl.interleave(even, odd)",
        "tl.interleave(odd, even)",
        "pairs swapped",
        "KV int8",
    ),
    Plant(
        "attention_prefill",
        " + turn % (LIST_KEYS // KEYS) * KEYS",
        "",
        "the first turn of a listed block over and over",
        LISTS,
    ),
    Plant(
        "attention_prefill",
        "(is_seen | sees_all)",
        "is_seen",
        "full blocks of a list masked as others",
        LISTS,
    ),
    Plant(
        "attention_prefill",
        "list_row * visit_stride",
        "sequence * visit_stride",
        "every block of queries visits as the first does",
        LISTS,
    ),
]
