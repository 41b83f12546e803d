"""Event schedules in virtual time: when each worker computes, waits and is served. Uses only NumPy and SciPy."""
