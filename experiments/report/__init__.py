"""The report of a comparison, and the picture of a run's schedule."""

DRAW = "experiments.report.figures.schedule_plot:draw"  # a hook, by its address as matplotlib takes a second to import
