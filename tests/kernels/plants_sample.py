from tests.kernels.plants import Plant

PLANTS = [
    Plant("sample", "(1.0 / temperature *", "(temperature *", "the wrong way around", "falling"),
    Plant("sample", "temperature < _GREEDY_BELOW", "temperature < 0.0", "greedy is drawn", "equal"),
    Plant("sample", "(ranks == rank)", "(ranks == 1)", "of equal ones always the first", "equal"),
    Plant("sample", "(ranks <= CAPACITY)", "(ranks < CAPACITY)", "the last place of a list", "V=16 "),
    Plant("sample", "num_listed <= CAPACITY", "num_listed > 0", "a list that overflowed", "equal"),
    Plant("sample", "num_listed >= count", "num_listed > 0", "top-k within a list too short", "falling"),
    Plant("sample", "weight_listed >= share, V)\n    key", "num_listed > 0, V)\n    key", "a draw", "falling"),
    Plant("sample", "floor > low", "floor < low", "min-p is forgotten", "falling"),
    Plant("sample", "total = weight\n", "total = total\n", "not renormalised after top-p", "falling"),
    Plant("sample", "(counts > 0, taken, 0.0)", "(counts >= 0, taken, 0.0)", "presence for all", "edited"),
    Plant("sample", "values * repetition)", "values / repetition)", "logits below 0 raised", "edited"),
    Plant("sample", "sampling.sibling + place), 0, 0)", "sampling.top_k + place), 0, 0)", "siblings alike", "falling"),
    Plant("sample", "(word >> 8)", "(word & 0xFFFFFF)", "the lower bits of the word", "falling"),
    Plant("sample", "tl.constexpr(1e-5)", "tl.constexpr(0.1)", "what is sure is near", "falling"),
    Plant("sample", "tl.constexpr(1e-5)", "tl.constexpr(0.0)", "nothing is ever near", "falling"),
    Plant("sample", "if not is_finite(row.best)", "if row.best == 1.25", "a token from NaN", "not finite"),
]
