"""Training steps compiled for devices that need not be here, and what their schedules say."""
