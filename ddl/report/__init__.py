"""The report of a comparison, and the picture of a run's schedule."""

DRAW = "ddl.report.run_schedule:draw"  # a hook, by its address as matplotlib takes a second to import
