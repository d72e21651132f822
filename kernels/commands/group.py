"""`headrace kernels …`: the GPU kernels, each by itself."""

from __future__ import annotations

import click

from kernels.commands.audit_command import audit
from kernels.commands.gpu_check_command import gpu_check
from kernels.commands.parity_command import parity
from kernels.commands.roofline_command import roofline
from kernels.commands.tune_command import tune


@click.group()
def kernels() -> None:
    """Prove and measure the GPU kernels, with a GPU or without.

    Example: headrace kernels parity --op rope
    """


for command in (parity, audit, roofline, tune, gpu_check):
    kernels.add_command(command)
