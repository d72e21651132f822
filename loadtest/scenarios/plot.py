"""A scenario's curves as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from loadtest.scenarios.scenario import Scenario, ScenarioResult


def plot(file: Path, name: str, scenario: Scenario, outcomes: Mapping[str, ScenarioResult]) -> None:
    """One panel for each of `outcomes`, under its title. Raises ImportError without matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(outcomes), 4.5), layout="constrained")
    panels = figure.subplots(1, len(outcomes), sharey=True, squeeze=False)[0]
    for panel, (title, outcome) in zip(panels, outcomes.items(), strict=True):
        for label, curve in outcome.curves.items():
            panel.plot(curve.x, curve.y, label=label)
        num_rejected = sum(outcome.rejected.values())
        panel.set(title=f"{name}, {title}: {num_rejected:,} tries rejected", xlabel=scenario.axes[0])
        panel.grid(alpha=0.3)
    panels[0].set_ylim(bottom=0)  # once all is drawn: from then on the scale, which all share, is fixed
    panels[0].set_ylabel(scenario.axes[1])
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    figure.savefig(file)
