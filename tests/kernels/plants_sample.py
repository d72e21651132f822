from tests.kernels.plants import Plant

PLANTS = [
    Plant("sample", "(is_greedy, 1, ", "(is_greedy, 0, ", "greedy is drawn", "equal"),
    Plant("sample", "(ranks == rank)", "(ranks == 1)", "of equal ones always the first", "equal"),
    Plant("sample", "(ranks <= CAPACITY)", "(ranks < CAPACITY)", "the last place of a list", "V=16 "),
    Plant("sample", "num_listed <= CAPACITY", "num_listed > 0", "a list that overflowed", "equal"),
    Plant("sample", "num_listed >= count", "num_listed > 0", "top-k in a list too short", "falling V=50"),
    Plant("sample", "floor > low", "floor < low", "min-p is forgotten", "falling V=50"),
    Plant("sample", "total = weight\n", "total = total\n", "top-p without renormalising", "falling V=50"),
    Plant("sample", "(counts > 0, taken, 0.0)", "(counts >= 0, taken, 0.0)", "presence for all", "edited"),
    Plant("sample", "tl.constexpr(1e-5)", "tl.constexpr(0.0)", "nothing is ever near", "equal"),
    Plant("sample", "if not is_finite(row.best)", "if row.best == 1.25", "a token from NaN", "not finite"),
]
