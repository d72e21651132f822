from tests.kernels.plants import Plant

PLANTS = [
    Plant(
        "matmul_w8a8", "tl.max(tl.abs(x), axis=0)", "tl.max(x, axis=0)", "the scale of the largest, not |x|"
    ),
    Plant("matmul_w8a8", "+ 12582912.0) - 12582912.0", "+ 0.0) - 0.0", "cut off, not rounded"),
    Plant(
        "matmul_w8a8",
        "scales_ptr + output, is_output",
        "scales_ptr + 0 * output, is_output",
        "one scale for all",
    ),
    Plant("matmul_w8a8", "div_rn(largest, 127.0)", "div_rn(largest, 128.0)", "a code that does not exist"),
    Plant("matmul_w8a8", "* code_scale[:, None]", "* code_scale[0]", "all tokens have the first one's scale"),
    Plant("matmul_w8a8", "row * x_stride + column", "row * K + column", "a view taken for whole", "a view"),
    Plant("matmul_w8a8", "is_number &= column < K", "is_number &= column < K - 1", "a column is left out"),
    Plant("matmul_w8a8", "K % BYTES != 0", "K % BYTES == 0", "the next row's numbers are in the sum"),
]
